#pragma once
// One part's module with what it reads, made to run alone.

#include "graph/part_recorder.h"
#include "tensor/ops.h"

namespace shardfit::graph {

struct PartRunner::Run {
  explicit Run(PartRunner& runner) : machine(runner.machine_), runtime(runner.runtime_) {}
  ~Run() {
    runtime.recorder = nullptr;
    runtime.autocast.cache.clear();
    result.reset();
    inputs.clear();
    machine.modules.clear();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  model::Machine& machine;
  tensor::Runtime& runtime;
  std::uint32_t modules = 0;  // of the program before it was built
  const model::Module* module = nullptr;
  std::vector<tensor::Tensor> inputs;
  std::vector<tensor::NodeRef> sources;  // of the inputs; none where it wants no gradient
  std::vector<tensor::Tensor> leaving;   // gradients of the inputs, by slot
  tensor::Tensor result;
};

}  // namespace shardfit::graph
