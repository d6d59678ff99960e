#pragma once
// One part's module with what it reads, made to run alone.

#include "graph/first_seen.h"
#include "graph/part_recorder.h"
#include "tensor/ops.h"

namespace shardfit::graph {

/// Gradients as some words say (part.h), and what others hold of them.
struct GivenGradients {
  std::vector<tensor::Tensor> entries;
  std::vector<tensor::Tensor> others;
  std::vector<std::uint32_t> storages;  // their ids

  void make(tensor::Runtime& runtime, const Forms& forms, const Words& words);
  void clear();

 private:
  std::vector<tensor::Tensor> roots_, bodies_;
};

/// What is left of gradients: bodies with their storages, found from tensors that hold them.
class LeftGradients {
 public:
  struct Body {
    const tensor::TensorBody* body = nullptr;
    std::uint32_t uses = 0;
    std::int32_t base = -1;
  };

  /// `given`: storages that were there before; others must have been made since `first_new`.
  void begin(const std::vector<std::uint32_t>& given, std::uint32_t first_new);
  /// The tensor's body by number; -1: none.
  std::int32_t add(const tensor::Tensor& tensor);
  std::uint32_t storage_number(std::uint32_t id);
  /// storages() where it is none.
  std::uint32_t find_storage(std::uint32_t id) const { return numbers_.find(id, storages_); }
  std::uint32_t storages() const { return storages_; }
  const std::vector<Body>& bodies() const { return bodies_; }
  /// Nothing holds them but what was added and the gradients of parameters, on storages `leaves`.
  void check_uses(const std::vector<std::uint32_t>& leaves);

 private:
  FirstSeenAddress places_;
  FirstSeen numbers_;
  std::uint32_t storages_ = 0, first_new_ = 0;
  std::vector<Body> bodies_;
  std::vector<std::pair<const tensor::Storage*, std::uint32_t>> uses_;
};

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
      run.given.clear();
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
  GivenGradients given;
  LeftGradients left;
  std::vector<std::uint32_t> leaves;  // storages of parameters' gradients
};

}  // namespace shardfit::graph
