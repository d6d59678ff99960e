#pragma once
// torchtitan's Trainer (pytorch/torchtitan v0.2.2): how its ranks stand to each other. Its data
// ranks are those of fully_shard or of DistributedDataParallel.

#include <cstdint>

namespace shardfit::program {

struct TitanJob {
  std::int64_t tensor = 1;
  std::int64_t data = 1;  // that each see other samples
  std::int64_t rank = 0;  // data outermost, then tensor
                          // (torchtitan/distributed/parallel_dims.py, build_mesh)
  bool sequence_parallel = true;
  bool loss_parallel = true;

  std::int64_t tensor_rank() const { return rank % tensor; }
  std::int64_t data_rank() const { return rank / tensor % data; }
};

}  // namespace shardfit::program
