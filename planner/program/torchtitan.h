#pragma once
// torchtitan's Trainer (pytorch/torchtitan v0.2.2): how its ranks stand to each other. Its data
// ranks are those of fully_shard or of DistributedDataParallel.

#include <cstdint>
#include <vector>

#include "program/degrees.h"
#include "program/pipelining_actions.h"

namespace shardfit::program {

struct TitanJob {
  std::int64_t tensor = 1;
  std::int64_t data = 1;      // that each see other samples
  std::int64_t pipeline = 1;  // that each hold other layers
  std::int64_t rank = 0;      // pipeline outermost, then data, then tensor
                              // (torchtitan/distributed/parallel_dims.py, build_mesh)
  std::int64_t stages_a_rank = 1;
  PipeliningSchedule schedule = PipeliningSchedule::one_forward_one_backward;
  bool sequence_parallel = true;
  bool loss_parallel = true;

  std::int64_t tensor_rank() const { return rank % tensor; }
  std::int64_t data_rank() const { return rank / tensor % data; }
  std::int64_t pipeline_rank() const { return rank / (tensor * data); }
  std::int64_t stages() const { return pipeline * stages_a_rank; }
};

PipeliningShape titan_pipeline_shape(const TitanJob& job, std::int64_t micro_batches);
/// Layers of each of a model's stages; input and output count as one layer each
/// (torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part).
std::vector<std::int64_t> titan_stage_layers(std::int64_t stages, std::int64_t layers);
/// The stages that a rank of the job holds, in its order (pipeline_module_split).
std::vector<std::int64_t> titan_stages(const TitanJob& job);
/// Whether one of them is the last of the model.
bool titan_holds_last(const TitanJob& job);
/// Degrees and micro-batches that cannot be: keys `tp`, `dp`, `pp`, `virtual_stages` and
/// `micro_batches`.
std::vector<DegreeFault> check_titan(const TitanJob& job, std::int64_t micro_batches,
                                     std::int64_t layers, const SplitNumbers& numbers);

}  // namespace shardfit::program
