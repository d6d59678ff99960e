// What a job of Megatron's asks for: its degrees, and what the family's file is told of them.

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "program/megatron.h"
#include "program/training.h"

namespace shardfit::program {

using model::Value;

MegatronJob megatron_of(const TrainingJob& job) { return job.megatron.value_or(MegatronJob{}); }

PipelineShape pipeline_shape(const TrainingJob& job) {
  const MegatronJob megatron = megatron_of(job);
  PipelineShape shape;
  shape.schedule = megatron.virtual_stages > 1 ? PipelineSchedule::interleaved : megatron.schedule;
  shape.stages = megatron.pipeline;
  shape.stage = megatron.stage();
  shape.micro_batches = job.accumulation;
  shape.chunks = megatron.virtual_stages;
  return shape;
}

void set_megatron_words(const TrainingJob& job, model::Globals& globals) {
  const MegatronJob megatron = megatron_of(job);
  globals.set("tensor_parallel", Value::of(megatron.tensor));
  globals.set("expert_parallel", Value::of(megatron.expert));
  globals.set("expert_rank", Value::of(megatron.expert_rank()));
  globals.set("has_experts", Value::of_bool(globals.integer("num_experts") > 0));
  globals.set("sequence_parallel",
              Value::of_bool(megatron.sequence_parallel && megatron.tensor > 1));
  globals.set("bias_activation_fusion", Value::of_bool(megatron.bias_activation_fusion));
  globals.set("softmax_fp32", Value::of_bool(megatron.softmax_fp32));
  globals.set("has_attention_mask", Value::of_bool(megatron.attention_mask));
  const int i = globals.find("vocab_size");
  if (i < 0) return;
  Value& vocabulary = globals.values[static_cast<std::size_t>(i)];
  const std::int64_t multiple = 128 * megatron.tensor;
  vocabulary = Value::of(megatron.padded_vocabulary > 0
                             ? megatron.padded_vocabulary
                             : (vocabulary.integer + multiple - 1) / multiple * multiple);
}

namespace {

/// A split of layers that was given must be one of all layers, over all stages.
std::vector<DegreeFault> check_stage_layers(const MegatronJob& job, std::int64_t layers) {
  const auto stages = static_cast<std::int64_t>(job.stage_layers.size());
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (job.virtual_stages > 1) {
    return {{"stage_layers", "stages of several chunks take equally many layers", 1}};
  }
  if (stages != job.pipeline) {
    return {{"stage_layers",
             "layers of " + text(stages) + (stages == 1 ? " stage" : " stages") +
                 " for a pipeline of " + text(job.pipeline),
             job.pipeline}};
  }
  std::int64_t sum = 0;
  for (const std::int64_t own : job.stage_layers) {
    if (own < 1) return {{"stage_layers", "a stage of " + text(own) + " layers", 1}};
    sum += own;
  }
  if (sum == layers) return {};
  return {{"stage_layers", "the stages hold " + text(sum) + " of " + text(layers) + " layers",
           std::max<std::int64_t>(1, job.stage_layers.back() + layers - sum)}};
}

/// Experts are spread evenly, over data ranks.
std::vector<DegreeFault> check_experts(const MegatronJob& job, const model::Globals& globals) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  const std::int64_t experts = globals.integer("num_experts");
  if (experts == 0) {
    if (job.expert == 1) return {};
    return {{"ep", "expert parallelism of a model without experts", 1}};
  }
  std::vector<DegreeFault> faults;
  if (job.tensor > 1) {
    faults.push_back({"tp", "tensor parallelism of a mixture of experts is not modelled yet", 1});
  }
  const std::int64_t both = std::gcd(experts, job.data);
  std::int64_t nearest = std::min(job.expert, both);
  while (both % nearest != 0) --nearest;
  if (experts % job.expert != 0) {
    faults.push_back(
        {"ep", text(experts) + " experts over " + text(job.expert) + " ranks", nearest});
  } else if (job.data % job.expert != 0) {
    faults.push_back({"ep",
                      "experts over " + text(job.expert) + " of " + text(job.data) + " data ranks",
                      nearest});
  }
  return faults;
}

}  // namespace

std::vector<DegreeFault> check_megatron(const TrainingJob& job, const model::Globals& globals) {
  const MegatronJob megatron = megatron_of(job);
  std::vector<DegreeFault> faults;
  for (const auto& [key, degree] : {std::pair{"tp", megatron.tensor},
                                    {"pp", megatron.pipeline},
                                    {"dp", megatron.data},
                                    {"ep", megatron.expert},
                                    {"virtual_stages", megatron.virtual_stages}}) {
    if (degree < 1) faults.push_back({key, "a degree of " + std::to_string(degree), 1});
  }
  if (!faults.empty()) return faults;
  if (megatron.rank < 0 || megatron.rank >= megatron.ranks()) {
    faults.push_back(
        {"rank",
         "no rank " + std::to_string(megatron.rank) + " among " + std::to_string(megatron.ranks()),
         std::clamp<std::int64_t>(megatron.rank, 0, megatron.ranks() - 1)});
    return faults;
  }
  SplitNumbers numbers;
  numbers.heads = globals.integer("num_attention_heads");
  numbers.key_value_heads = globals.integer("num_query_groups");
  numbers.ffn = globals.integer("ffn_hidden_size");
  numbers.sequence = megatron.sequence_parallel ? job.sequence : 0;
  faults = check_tensor_degree(numbers, megatron.tensor);
  for (DegreeFault& fault : check_experts(megatron, globals)) faults.push_back(std::move(fault));
  const std::int64_t layers = globals.integer("num_layers");
  auto of_pipeline = megatron.stage_layers.empty() ? check_pipeline(pipeline_shape(job), layers)
                                                   : check_stage_layers(megatron, layers);
  for (DegreeFault& fault : of_pipeline) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace shardfit::program
