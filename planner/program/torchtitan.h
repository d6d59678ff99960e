#pragma once
// torchtitan's Trainer (pytorch/torchtitan v0.2.2): how its ranks stand to each other. Its data
// ranks are those of fully_shard or of DistributedDataParallel.

#include <cstdint>

#include "program/pipeline_schedule.h"

namespace shardfit::program {

struct TitanJob {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 1;  // that each see other samples
  std::int64_t rank = 0;  // pipeline outermost, then data, then tensor
                          // (torchtitan/distributed/parallel_dims.py, build_mesh)
  bool sequence_parallel = true;
  bool loss_parallel = true;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  std::int64_t virtual_stages = 1;

  std::int64_t tensor_rank() const { return rank % tensor; }
  std::int64_t data_rank() const { return rank / tensor % data; }
  std::int64_t stage() const { return rank / (tensor * data); }
};

}  // namespace shardfit::program
