#include "validate/cases.h"

#include <cmath>
#include <filesystem>

#include "base/format.h"
#include "spec/reader.h"
#include "validate/case_fields.h"
#include "validate/case_keys.h"
#include "validate/deepspeed_cases.h"
#include "validate/megatron_cases.h"
#include "validate/titan_cases.h"

namespace shardfit::validate {
namespace {

using program::Implementation;
using program::Recompute;
using spec::Kind;
using spec::Node;

/// What keeps a case of transformers.Trainer from being expressed: other releases and settings that
/// change its loop.
std::string unsupported_trainer(const Node& c) {
  const std::string strategy = text(at(c, "parallel"), "strategy");
  if (strategy != "none" && strategy != "data-parallel") return "strategy " + strategy;
  if (text(c, "program") != "trainer-1") return "program " + text(c, "program");
  const std::string release = text(c, "framework_version");
  if (release.find("transformers 5.24") == std::string::npos) {
    const std::size_t at = release.find("transformers");
    return at == std::string::npos ? "release " + release
                                   : release.substr(at, release.find(',', at) - at);
  }
  for (const Node& flag : at(c, "flags").children) {
    const bool after = flag.text == "eval_after_last_step" || flag.text == "save_after_last_step";
    if (!after) return "flag " + flag.text;
  }
  if (text(c, "attention") != "sdpa" && text(c, "attention") != "eager") {
    return "attention " + text(c, "attention");
  }
  const std::string implementation = text(at(c, "optimizer"), "implementation");
  if (implementation == "paged") return "optimizer states in managed memory";
  return unread_key(c);
}

/// The first thing in a case that has no place in a TrainingJob yet.
std::string unsupported(const Node& c) {
  if (text(c, "profile") == "deepspeed") return unsupported_deepspeed(c);
  if (text(c, "profile") == "megatron") return unsupported_megatron(c);
  if (text(c, "profile") == "torchtitan") return unsupported_titan(c);
  const Node& parallel = at(c, "parallel");
  const std::string strategy = text(parallel, "strategy");
  const bool known = strategy.empty() || strategy == "none" || strategy == "ddp" ||
                     strategy == "fsdp2" || strategy == "fsdp1" || strategy == "data-parallel";
  if (!known) return "strategy " + strategy;
  if (strategy == "data-parallel" && truth(c, "reentrant")) {
    return "reentrant recompute under DataParallel";
  }
  if (truth(c, "compile")) return "torch.compile";
  if (given(c, "quantization")) return "quantization";
  if (given(c, "adapter")) return "adapter";
  if (truth(c, "use_cache")) return "use_cache";
  const std::string profile = text(c, "profile");
  if (profile == "hf-trainer") return unsupported_trainer(c);
  if (profile != "plain-pytorch") return "profile " + profile;
  const std::string program = text(c, "program");
  if (program.rfind("plain-loop-", 0) != 0) return "program " + program;
  return unread_key(c);
}

void read_precision(const Node& c, program::TrainingJob& job, std::string& skipped) {
  const Node& precision = at(c, "precision");
  const auto parameters = dtype_named(text(precision, "parameters"));
  if (!parameters) {
    skipped = "precision of parameters";
    return;
  }
  job.parameters = *parameters;
  if (truth(precision, "autocast")) job.autocast = dtype_named(text(precision, "compute"));
}

void read_optimizer(const Node& c, program::TrainingJob& job, std::string& skipped) {
  const Node& optimizer = at(c, "optimizer");
  job.optimizer = text(optimizer, "name");
  if (job.optimizer == "adafactor" && job.framework == "hf-trainer") {
    job.optimizer = "adafactor-transformers";  // its own, not torch.optim's
  }
  const std::string implementation = text(optimizer, "implementation");
  if (implementation == "fused") job.implementation = Implementation::fused;
  if (implementation == "for-loop") job.implementation = Implementation::for_loop;
  if (!program::make_optimizer(job.optimizer, job.implementation)) {
    skipped = "optimizer " + job.optimizer;
  }
}

/// N of "selective first N blocks".
std::optional<std::int64_t> first_blocks(const std::string& word) {
  constexpr std::string_view before = "selective first ", after = " blocks";
  if (!word.starts_with(before) || !word.ends_with(after)) return {};
  if (word.size() < before.size() + after.size()) return {};
  return parse_integer(word.substr(before.size(), word.size() - before.size() - after.size()));
}

void read_recompute(const Node& c, program::TrainingJob& job, std::string& skipped) {
  const std::string word = text(c, "recompute");
  job.reentrant = truth(c, "reentrant");
  if (text(c, "profile") == "megatron") return;  // its own words: read_megatron
  if (word.empty() || word == "none") return;
  if (word == "full") {
    job.recompute = Recompute::full;
  } else if (word == "selective every 2nd block") {
    job.recompute = Recompute::every_second;
  } else if (word == "selective save attention") {
    job.recompute = Recompute::save_attention;
  } else if (word == "selective save attention+matmul") {
    job.recompute = Recompute::save_attention_matmul;
  } else if (word == "selective save attention+matmul/2" || word == "selective op") {
    job.recompute = Recompute::save_attention_matmul_half;
  } else if (const auto blocks = first_blocks(word)) {
    job.recompute = Recompute::first_blocks;
    job.recompute_blocks = *blocks;
  } else {
    skipped = "recompute " + word;
  }
}

void read_lora(const Node& c, program::TrainingJob& job, Diagnostics& faults) {
  const Node& lora = at(c, "lora");
  if (lora.kind != Kind::map) return;
  program::LoraJob out;
  out.rank = whole(lora, "rank", 16, faults);
  out.dropout = real(lora, "dropout", 0, faults);
  out.dora = truth(lora, "dora");
  out.fp32_adapters = text(lora, "dtype") == "fp32";
  for (const Node& target : at(lora, "targets").children) out.targets.push_back(target.text);
  for (const Node& m : at(lora, "modules_to_save").children) out.modules_to_save.push_back(m.text);
  job.lora = std::move(out);
}

/// Dtypes of the policy that the plain loops pass where compute or reduction differ from the
/// parameters.
struct Mixed {
  std::optional<DType> compute, reduce;
};
Mixed read_mixed(const Node& c, const program::TrainingJob& job) {
  const Node& precision = at(c, "precision");
  const std::optional<DType> compute = dtype_named(text(precision, "compute"));
  const std::optional<DType> reduce = dtype_named(text(precision, "reduce"));
  const bool mixed = compute.value_or(job.parameters) != job.parameters ||
                     reduce.value_or(job.parameters) != job.parameters;
  if (!mixed || truth(precision, "autocast")) return {};
  return {compute, reduce};
}

/// fully_shard as the plain loops call it.
void read_fsdp2(const Node& c, Case& out, Diagnostics& faults) {
  const Node& parallel = at(c, "parallel");
  program::Fsdp2Job fsdp;
  fsdp.ranks = whole(parallel, "shard", 2, faults);
  fsdp.replicas = whole(parallel, "replicate", 1, faults);
  fsdp.rank = whole(c, "rank", 0, faults);
  const Mixed mixed = read_mixed(c, out.job);
  fsdp.compute = mixed.compute;
  fsdp.reduce = mixed.reduce;
  const std::string reshard = text(parallel, "reshard_after_forward");
  fsdp.reshard_after_forward = reshard != "false";
  if (!reshard.empty() && reshard != "false" && reshard != "true") {
    fsdp.reshard_ranks = whole(parallel, "reshard_after_forward", 0, faults);
  }
  if (given(parallel, "reshard_root")) fsdp.reshard_root = truth(parallel, "reshard_root");
  fsdp.embeddings = truth(parallel, "wrap_embeddings");
  fsdp.prefetch_forward = static_cast<int>(whole(parallel, "explicit_prefetch_forward", 0, faults));
  fsdp.prefetch_backward =
      static_cast<int>(whole(parallel, "explicit_prefetch_backward", 0, faults));
  fsdp.offload = text(parallel, "cpu_offload") == "both";
  fsdp.no_sync = truth(c, "no_sync");
  fsdp.built_on_meta = text(c, "build_on") == "meta";
  out.job.fsdp2 = fsdp;
}

void read_fsdp1(const Node& c, Case& out, Diagnostics& faults) {
  using program::Fsdp1Job;
  const Node& parallel = at(c, "parallel");
  Fsdp1Job fsdp;
  fsdp.ranks = whole(parallel, "shard", 2, faults);
  fsdp.replicas = whole(parallel, "replicate", 1, faults);
  fsdp.rank = whole(c, "rank", 0, faults);
  const std::string sharding = text(parallel, "sharding_strategy");
  if (sharding == "SHARD_GRAD_OP") fsdp.sharding = Fsdp1Job::Sharding::gradients_and_states;
  if (sharding == "NO_SHARD") {
    fsdp.sharding = Fsdp1Job::Sharding::none;
    fsdp.ranks = whole(parallel, "data", 2, faults);  // which keep a copy each
  }
  if (sharding == "HYBRID_SHARD") fsdp.sharding = Fsdp1Job::Sharding::hybrid;
  fsdp.original_parameters = text(parallel, "use_orig_params") != "false";
  const Mixed mixed = read_mixed(c, out.job);
  fsdp.compute = mixed.compute;
  fsdp.reduce = mixed.reduce;
  fsdp.limit_gathers = text(parallel, "limit_all_gathers") != "false";
  fsdp.prefetch_forward = truth(parallel, "forward_prefetch");
  const std::string backward = text(parallel, "backward_prefetch");
  if (backward == "none") fsdp.prefetch_backward = Fsdp1Job::Prefetch::none;
  if (backward == "post") fsdp.prefetch_backward = Fsdp1Job::Prefetch::after;
  fsdp.blocks = text(parallel, "wrap") != "root only";
  fsdp.offload = text(parallel, "cpu_offload") == "both";
  fsdp.no_sync = truth(c, "no_sync");
  out.job.fsdp1 = fsdp;
}

void read_parallel(const Node& c, Case& out, Diagnostics& faults) {
  const Node& parallel = at(c, "parallel");
  if (text(c, "profile") == "deepspeed") return read_deepspeed(c, out, faults);
  if (text(c, "profile") == "megatron") return read_megatron(c, out, faults);
  if (text(c, "profile") == "torchtitan") return read_titan(c, out, faults);
  if (text(parallel, "strategy") == "fsdp2") read_fsdp2(c, out, faults);
  if (text(parallel, "strategy") == "fsdp1") read_fsdp1(c, out, faults);
  if (text(parallel, "strategy") == "data-parallel") {
    const bool trainer = text(c, "profile") == "hf-trainer";
    out.job.data_parallel = program::DataParallelJob{whole(parallel, "data", 2, faults),
                                                     whole(c, "rank", 0, faults), trainer};
  }
  if (text(parallel, "strategy") != "ddp") return;
  program::DdpJob ddp;
  ddp.ranks = whole(parallel, "data", 2, faults);
  ddp.rank = whole(c, "rank", 0, faults);
  ddp.bucket_bytes = whole(parallel, "bucket_mb", 25, faults) << 20;
  ddp.bucket_bytes_given = true;  // the plain loops pass it always
  ddp.bucket_view = truth(parallel, "bucket_view");
  ddp.static_graph = truth(parallel, "static_graph");
  ddp.find_unused = truth(parallel, "find_unused");
  ddp.no_sync = truth(c, "no_sync");
  out.job.ddp = ddp;
  const Node& optimizer = at(c, "optimizer");
  if (truth(optimizer, "zero_redundancy")) {
    out.job.zero_redundancy = program::ZeroRedundancyJob{
        ddp.ranks, ddp.rank, truth(optimizer, "parameters_as_bucket_view")};
  }
}

void read_device(const Node& c, Case& out, Diagnostics& faults) {
  const Node& device = at(c, "device");
  const double capability = real(device, "compute_capability", 9.0, faults);
  out.job.device.capability_major = static_cast<int>(capability);
  out.job.device.capability_minor = static_cast<int>(std::lround(capability * 10)) % 10;
  out.job.device.multiprocessors = static_cast<int>(whole(device, "sms", 132, faults));
  out.memory_bytes = whole(device, "memory_bytes", 0, faults);
  out.device = text(device, "name");
  out.count = whole(device, "count", 1, faults);
}

/// What a batch consists of besides its samples and tokens.
void read_sizes(const Node& batch, program::TrainingJob& job, Diagnostics& faults) {
  for (const char* key : {"image_size", "latent", "text_tokens", "image_tokens", "frames",
                          "samples", "lookups_per_bag"}) {
    const Node& node = at(batch, key);
    if (node.kind == Kind::null) continue;
    std::vector<std::int64_t>& sizes = job.sizes[key];
    if (node.kind == Kind::list) {
      for (const Node& one : node.children) {
        sizes.push_back(spec::as_integer(one, key, {1}, faults).value_or(1));
      }
    } else {
      sizes.push_back(spec::as_integer(node, key, {1}, faults).value_or(1));
    }
  }
}

/// Flags that change a plain loop's program.
void read_flags(const Node& c, program::TrainingJob& job) {
  const std::string frozen = "frozen: all but ";
  for (const Node& flag : at(c, "flags").children) {
    if (flag.text == "channels_last") job.channels_last = true;
    if (flag.text.rfind(frozen, 0) == 0) job.train_only = flag.text.substr(frozen.size());
    // Its checkpointed bottlenecks are the only units that recompute.
    if (flag.text == "densenet_memory_efficient") job.recompute = Recompute::full;
    job.switches.insert(flag.text);
  }
}

void read_job(const Node& c, Case& out, Diagnostics& faults) {
  program::TrainingJob& job = out.job;
  job.framework = text(c, "profile");
  job.program = text(c, "program");
  if (given(c, "head")) job.head = text(c, "head");
  read_precision(c, job, out.skipped);
  read_optimizer(c, job, out.skipped);
  read_recompute(c, job, out.skipped);
  read_lora(c, job, faults);
  read_parallel(c, out, faults);
  read_device(c, out, faults);
  if (const Node& clip = at(c, "clip"); clip.kind == Kind::map) {
    job.clip_foreach = text(clip, "foreach") != "false";
  }
  job.grad_scaler = truth(c, "grad_scaler");
  job.zero_to_none = text(c, "zero_grad") != "to zero";
  job.autocast_cache = text(c, "autocast_cache") != "false";
  read_flags(c, job);
  const Node& batch = at(c, "batch");
  read_sizes(batch, job, faults);
  job.micro_batch = whole(batch, "micro", 1, faults);
  job.accumulation = whole(batch, "accumulation", 1, faults);
  job.sequence = whole(batch, "sequence", 1, faults);
  job.decoder_sequence = whole(batch, "decoder_sequence", 0, faults);
  if (given(c, "attention")) job.attention = text(c, "attention");
  if (given(c, "attention_mask")) job.attention_mask = text(c, "attention_mask");
  if (text(c, "dropout") != "config") job.dropout = real(c, "dropout", 0, faults);
  if (given(c, "loss")) job.loss = text(c, "loss");
  if (given(c, "experts")) job.experts = text(c, "experts");
  for (const Node& share : at(c, "expert_shares").children) {
    job.routing = "shares";
    job.expert_shares.push_back(spec::as_real(share, "expert_shares", {}, faults).value_or(0));
  }
  if (given(c, "activation_offload")) {
    job.offload = text(c, "activation_offload") == "pinned"
                      ? program::TrainingJob::Offload::pinned
                      : program::TrainingJob::Offload::pageable;
  }
  job.steps = static_cast<int>(whole(c, "steps", 3, faults));
  out.allocator = text(at(c, "environment"), "PYTORCH_CUDA_ALLOC_CONF");
}

bool counter(const std::string& key) {
  return key == "allocated_bytes" || key == "reserved_bytes" || key == "device_bytes";
}

void read_measured(const Node& node, const std::string& path, std::vector<Reading>& out,
                   Diagnostics& faults) {
  for (const Node& child : node.children) {
    if (child.kind == Kind::map && child.key != "oom" && child.key != "eager_twin") {
      read_measured(child, path.empty() ? child.key : path + "." + child.key, out, faults);
    } else if (counter(child.key)) {
      const auto value = spec::as_integer(child, child.key, {0}, faults);
      out.push_back({path, child.key, value.value_or(0), 0});
    } else if (child.key == "step_s") {
      const auto value = spec::as_real(child, child.key, {}, faults);
      out.push_back({path, "step_seconds", 0, value.value_or(0)});
    }
  }
}

std::string model_file(const std::string& case_file, const std::string& model) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(case_file).parent_path();
  for (const fs::path& root : {folder, folder / ".."}) {
    if (fs::exists(root / model)) return (root / model).string();
  }
  return "";
}

Case read_case(const Node& c, const std::string& path, Diagnostics& faults) {
  Case out;
  out.id = text(c, "id");
  out.group = text(c, "group");
  out.skipped = unsupported(c);
  out.model_path = model_file(path, text(c, "model"));
  if (out.model_path.empty()) out.skipped = "no model file " + text(c, "model");
  out.overrides = at(c, "model_overrides");
  if (out.skipped.empty()) read_job(c, out, faults);
  const Node& measured = at(c, "measured");
  read_measured(measured, "", out.readings, faults);
  out.ends_out_of_memory = text(measured, "outcome") == "does_not_fit";
  const Node& oom = at(measured, "oom");
  out.failing_phase = text(oom, "phase");
  out.failing_message = text(oom, "message");
  return out;
}

}  // namespace

std::vector<Case> read_cases(const std::string& path) {
  Diagnostics faults;
  const Node root = spec::read_file(path, faults);
  std::vector<Case> cases;
  const Node* list = root.kind == Kind::list ? &root : root.child("cases");
  if (!list || list->kind != Kind::list) {
    throw InputError(root.where, "expected a list of measured cases, found " + describe(root));
  }
  for (const Node& c : list->children) {
    if (c.kind != Kind::map || !c.child("id")) {
      faults.error(c.where, "expected a case with an 'id', found " + describe(c));
      continue;
    }
    cases.push_back(read_case(c, path, faults));
  }
  faults.throw_if_any();
  return cases;
}

spec::ModelSpec model_of(const Case& c) {
  spec::ModelSpec model = spec::read_model(c.model_path);
  for (const spec::Node& o : c.overrides.children) spec::override_number(model, o.key, o);
  return model;
}

}  // namespace shardfit::validate
