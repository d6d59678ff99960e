#pragma once
// Megatron's activation recomputation: a module's forward without a graph, run again in the
// backward (megatron/core/tensor_parallel/random.py, CheckpointFunction).

#include "model/machine.h"
#include "program/megatron.h"

namespace shardfit::program {

/// Wraps the modules that the job recomputes while it lives.
class MegatronCheckpointing {
 public:
  MegatronCheckpointing(model::Machine& machine, const MegatronJob& job);
  ~MegatronCheckpointing();
  MegatronCheckpointing(const MegatronCheckpointing&) = delete;
  MegatronCheckpointing& operator=(const MegatronCheckpointing&) = delete;

 private:
  model::Machine& machine_;
};

}  // namespace shardfit::program
