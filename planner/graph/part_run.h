#pragma once
// One part's module with what it reads, made to run alone.

#include "graph/first_seen.h"
#include "graph/part_recorder.h"
#include "tensor/ops.h"

namespace shardfit::graph {

/// What a part runs on; kept for the next one.
struct PartRunner::Run {
  explicit Run(PartRunner& runner)
      : machine(runner.machine_), runtime(runner.runtime_), recorder(runner.runtime_) {}

  /// The end of a part, whatever it came to.
  struct End {
    explicit End(Run& of) : run(of) {}
    ~End() {
      run.runtime.recorder = nullptr;
      run.runtime.autocast.cache.clear();
      run.result.reset();
      run.inputs.clear();
      run.sources.clear();
      run.leaving.clear();
      run.machine.modules.clear();
      run.recorder.end();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    Run& run;
  };

  model::Machine& machine;
  tensor::Runtime& runtime;
  PartRecorder recorder;
  const model::Module* module = nullptr;
  std::vector<tensor::Tensor> inputs;
  std::vector<tensor::NodeRef> sources;  // of the inputs; none where it wants no gradient
  std::vector<tensor::Tensor> leaving;   // gradients of the inputs, by slot
  tensor::Tensor result;
  FirstSeen storages;                    // of gradients that are left
  FirstSeenAddress bodies;
};

}  // namespace shardfit::graph
