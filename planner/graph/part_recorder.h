#pragma once
// Sees the operators of one part that runs alone.

#include <unordered_map>

#include "graph/part.h"
#include "tensor/recorder.h"

namespace shardfit::graph {

class PartRecorder : public tensor::OperatorRecorder {
 public:
  /// `modules`: the program's before the part was built.
  PartRecorder(const tensor::Runtime& runtime, const std::vector<PartInput>& inputs,
               std::uint32_t modules)
      : runtime_(runtime), inputs_(inputs), modules_(modules) {}

  /// The inputs' tensors, before anything runs; their producers are numbers below theirs.
  void see_inputs(const std::vector<tensor::Tensor>& inputs);

  std::int32_t ran(const Compute& cost, tensor::Tensors inputs, tensor::Tensors outputs) override;
  void backward_begins(const tensor::Tensor& root) override;
  void node_runs(const tensor::Node& node) override;

  /// Fills the part from the forward of its module, which gave `result`.
  void finish(const model::Machine& machine, const model::Module& module,
              const tensor::Tensor& result, bool one_layer, Part& part);
  std::vector<Work> take_work() { return std::move(work_); }

 private:
  struct Keep {
    std::uint32_t storage = 0;
    std::int32_t operation = -1;  // as the runtime counts them
  };
  Place storage_place(std::uint32_t storage);
  /// An operator by the runtime's number: those below the inputs' number are their producers.
  Place operator_place(std::int32_t number) const;
  Place link(const tensor::Tensor& tensor);
  Place new_tensor(const tensor::Tensor& tensor, std::int32_t producer);
  void read_nodes(const tensor::Tensor& result);
  void count_saved(bool one_layer, const tensor::Tensor& result, Part& part);
  void list_modules(const model::Machine& machine, const model::Module& module, Part& part);

  const tensor::Runtime& runtime_;
  const std::vector<PartInput>& inputs_;
  std::uint32_t modules_;
  std::unordered_map<std::uint32_t, Place> storages_;  // by id
  std::vector<std::uint32_t> ids_;                     // of its own storages
  std::vector<std::int32_t> makers_;                   // of them
  std::unordered_map<std::uint64_t, Place> others_;    // by producer and storage
  std::vector<PartOperator> operators_;
  std::vector<Place> links_;
  std::vector<PartTensor> tensors_;
  std::vector<std::pair<std::uint32_t, std::int32_t>> writes_;
  std::vector<Keep> keeps_;
  std::vector<std::uint32_t> reached_;
  bool whole_ = false;  // the forward is over
  std::int32_t current_ = -1;
  std::vector<Work> work_;
};

/// Where a gradient goes that leaves the part.
struct Leaving : tensor::NodeExtra {
  std::uint32_t input = 0;
  tensor::Tensor* to = nullptr;
};

}  // namespace shardfit::graph
