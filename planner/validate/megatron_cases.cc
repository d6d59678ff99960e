#include "validate/megatron_cases.h"

#include "validate/case_fields.h"

namespace shardfit::validate {
namespace {

using program::MegatronJob;
using spec::Kind;
using spec::Node;

/// `recompute` in the words of the cases; false: unknown.
bool read_recompute(const Node& c, MegatronJob& job, Diagnostics& faults) {
  const std::string word = text(c, "recompute");
  if (word.empty() || word == "none") return true;
  if (word == "full") {
    job.recompute = MegatronJob::Recompute::full;
  } else if (word == "selective modules mlp" || word == "selective mlp") {
    job.recompute = MegatronJob::Recompute::mlp;
  } else if (word == "selective modules core_attn" || word == "selective core_attn") {
    job.recompute = MegatronJob::Recompute::core_attention;
  } else if (word == "full-block") {
    job.recompute = MegatronJob::Recompute::full_block;
    job.recompute_layers = whole(c, "recompute_num_layers", 1, faults);
  } else {
    const std::string first = "selective first ";
    if (word.rfind(first, 0) != 0 || word.find(" block") == std::string::npos) return false;
    std::int64_t layers = 0;
    for (std::size_t i = first.size(); i < word.size() && word[i] >= '0' && word[i] <= '9'; ++i) {
      layers = 10 * layers + (word[i] - '0');
    }
    job.recompute = MegatronJob::Recompute::full_block;
    job.recompute_layers = layers;
  }
  return true;
}

bool known_option(const std::string& key) {
  static const std::vector<std::string> keys = {"overlap",
                                                "bucket_size",
                                                "bucket_all_chunks",
                                                "softmax_fp32",
                                                "attention_mask",
                                                "cross_entropy_loss_fusion",
                                                "norm",
                                                "bias_activation_fusion",
                                                "bias_dropout_fusion",
                                                "align_grad_reduce"};
  for (const std::string& known : keys) {
    if (known == key) return true;
  }
  return false;
}

}  // namespace

std::string unsupported_megatron(const Node& c) {
  if (text(c, "program") != "mcore-loop-1") return "program " + text(c, "program");
  const Node& parallel = at(c, "parallel");
  const std::string strategy = text(parallel, "strategy");
  if (strategy != "ddp" && strategy != "megatron-distributed-optimizer" && strategy != "none") {
    return "strategy " + strategy;
  }
  if (given(parallel, "context") && text(parallel, "context") != "1") return "context parallelism";
  if (text(parallel, "cpu_offload") != "none" && given(parallel, "cpu_offload")) {
    return "offload to the host";
  }
  for (const Node& option : at(c, "options").children) {
    if (!known_option(option.key)) return "option " + option.key;
  }
  if (truth(c, "compile")) return "torch.compile";
  return "";
}

void read_megatron(const Node& c, Case& out, Diagnostics& faults) {
  const Node& parallel = at(c, "parallel");
  const Node& options = at(c, "options");
  MegatronJob job;
  job.tensor = whole(parallel, "tensor", 1, faults);
  job.pipeline = whole(parallel, "pipeline", 1, faults);
  job.data = whole(parallel, "data", 1, faults);
  job.virtual_stages = whole(parallel, "virtual_stages", 1, faults);
  job.expert = whole(parallel, "expert", 1, faults);
  job.sequence_parallel = truth(parallel, "sequence_parallel");
  job.distributed_optimizer = text(parallel, "strategy") == "megatron-distributed-optimizer";
  job.rank = whole(c, "rank", 0, faults);
  job.padded_vocabulary = whole(c, "vocab_padded_to", 0, faults);
  const Node& precision = at(c, "precision");
  if (text(precision, "reduce") != "fp32") job.gradients = out.job.parameters;
  job.overlap = truth(options, "overlap");
  job.bucket_size = whole(options, "bucket_size", 0, faults);
  job.bucket_all_chunks = truth(options, "bucket_all_chunks");
  job.softmax_fp32 = truth(options, "softmax_fp32");
  job.attention_mask = truth(options, "attention_mask");
  job.cross_entropy_fusion = truth(options, "cross_entropy_loss_fusion");
  if (given(options, "bias_activation_fusion")) {
    job.bias_activation_fusion = truth(options, "bias_activation_fusion");
  }
  if (!read_recompute(c, job, faults)) out.skipped = "recompute " + text(c, "recompute");
  out.job.megatron = job;
}

}  // namespace shardfit::validate
