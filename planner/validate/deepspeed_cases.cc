#include "validate/deepspeed_cases.h"

#include "validate/case_fields.h"

namespace shardfit::validate {

using spec::Kind;
using spec::Node;

namespace {

bool has_flag(const Node& c, const char* name) {
  for (const Node& flag : at(c, "flags").children) {
    if (flag.text == name) return true;
  }
  return false;
}

bool off(const Node& map, const char* key) { return text(map, key) == "false"; }

}  // namespace

std::string unsupported_deepspeed(const Node& c) {
  const std::string program = text(c, "program");
  if (program != "deepspeed-loop-1" && program != "deepspeed-bf16-master-1") {
    return "program " + program;
  }
  const std::string release = text(c, "framework_version");
  if (release.find("DeepSpeed 0.19.8") == std::string::npos &&
      release.find("DeepSpeed 0.18.4") == std::string::npos) {
    return "release " + release.substr(0, release.find(','));
  }
  return "";
}

void read_deepspeed(const Node& c, Case& out, Diagnostics& faults) {
  const Node& config = at(c, "deepspeed_config");
  const Node& zero = at(config, "zero_optimization");
  program::DeepSpeedJob job;
  job.stage = static_cast<int>(whole(zero, "stage", 0, faults));
  job.ranks = whole(at(c, "parallel"), "data", 1, faults);
  job.rank = whole(c, "rank", 0, faults);
  const auto size = [&](const char* key, std::int64_t& value) {
    value = whole(zero, key, value, faults);
  };
  size("reduce_bucket_size", job.reduce_bucket_size);
  size("stage3_prefetch_bucket_size", job.prefetch_bucket_size);
  size("stage3_max_live_parameters", job.max_live_parameters);
  size("stage3_max_reuse_distance", job.max_reuse_distance);
  size("stage3_param_persistence_threshold", job.persistence_threshold);
  size("sub_group_size", job.sub_group_size);
  if (given(zero, "overlap_comm")) job.overlap_comm = truth(zero, "overlap_comm");
  job.contiguous_gradients = !off(zero, "contiguous_gradients");
  job.reduce_scatter = !off(zero, "reduce_scatter");
  job.round_robin_gradients = truth(zero, "round_robin_gradients");
  job.offload_optimizer = given(zero, "offload_optimizer");
  job.offload_parameters = given(zero, "offload_param");
  job.fp32_accumulation = text(at(config, "data_types"), "grad_accum_dtype") == "fp32";
  job.low_precision_states = truth(at(config, "bf16"), "bf16_master_weights_and_grads");
  job.clip = given(config, "gradient_clipping");
  job.zero_init = !has_flag(c, "engine_partitions_after_build");
  if (has_flag(c, "built_in_fp32")) job.built_in = DType::f32;
  job.release_0_18 = text(c, "framework_version").find("DeepSpeed 0.18") != std::string::npos;
  job.torch_style_backward = text(c, "program") == "deepspeed-bf16-master-1";
  out.job.deepspeed = job;
  out.job.implementation = text(at(c, "optimizer"), "implementation") == "foreach"
                               ? program::Implementation::foreach
                               : program::Implementation::fused;
  out.peaks_from_start = true;
}

}  // namespace shardfit::validate
