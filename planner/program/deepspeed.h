#pragma once
// DeepSpeed's engine: what `deepspeed.initialize` makes of a model and its optimizer, and what its
// backward and step do. Stages of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) as release
// 0.19.8 lays them out; numbers are those of its configuration file (runtime/zero/config.py).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "program/strategy.h"

namespace shardfit::program {

struct DeepSpeedJob {
  int stage = 2;  // 0 to 3
  std::int64_t ranks = 2;
  std::int64_t rank = 0;
  std::int64_t reduce_bucket_size = 500000000;  // elements, as all sizes here
  std::int64_t prefetch_bucket_size = 50000000;
  std::int64_t max_live_parameters = 1000000000;
  std::int64_t max_reuse_distance = 1000000000;
  std::int64_t persistence_threshold = 100000;
  std::int64_t sub_group_size = 1000000000;
  std::optional<bool> overlap_comm;  // empty: only in stage 3
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  bool round_robin_gradients = false;
  bool offload_optimizer = false;     // to pinned host memory
  bool offload_parameters = false;    // stage 3
  bool fp32_accumulation = false;     // data_types.grad_accum_dtype
  bool low_precision_states = false;  // bf16_master_weights_and_grads and bf16_optimizer_states
  bool clip = true;
  bool zero_init = true;          // stage 3: built inside zero.Init, else partitioned by initialize
  std::optional<DType> built_in;  // dtype of the model before initialize, where it is another
  bool release_0_18 = false;      // 0.18.4 where it differs
  bool torch_style_backward = false;  // the program calls loss.backward() itself

  bool overlap() const { return overlap_comm.value_or(stage == 3); }
};

class ShardedParameters;
/// What `with deepspeed.zero.Init()` does while a model is built: modules are partitioned as soon
/// as they are made. Empty where the job has none of it.
std::shared_ptr<ShardedParameters> deepspeed_zero_init(const DeepSpeedJob& job,
                                                       model::Machine& machine);

/// What the engine is made of.
struct DeepSpeedParts {
  const DeepSpeedJob& job;
  model::Machine& machine;
  const model::Module& root;
  std::string optimizer;
  Implementation implementation = Implementation::fused;
  std::int64_t accumulation = 1;
  DType dtype = DType::bf16;
  bool lora = false;                          // peft's two modules are around the model
  std::shared_ptr<ShardedParameters> shards;  // of zero.Init
};

std::unique_ptr<Strategy> make_deepspeed(const DeepSpeedParts& parts);
/// The engine multiplies the loss by its scale, also by 1 (base_optimizer.py, scale_if_loss).
bool deepspeed_scales_loss(const DeepSpeedJob& job, DType dtype);

}  // namespace shardfit::program
