#pragma once
// Draws a model's graph while one training step runs.

#include <unordered_map>
#include <vector>

#include "base/name_table.h"
#include "graph/model_graph.h"
#include "model/machine.h"
#include "tensor/recorder.h"

namespace shardfit::graph {

/// An operator wrote over what the backward of another needs; `path` is its own.
struct WrittenOver : model::ModelError {
  WrittenOver(const std::string& writer, const std::string& keeper);
};

/// Takes out layers that have nothing, and adds up the rest.
void drop_empty_layers(ModelGraph& graph);

class Trace : public tensor::OperatorRecorder {
 public:
  explicit Trace(const tensor::Runtime& runtime) : runtime_(runtime) {}

  std::int32_t ran(const Compute& cost, tensor::Tensors inputs, tensor::Tensors outputs) override;
  /// Reads what every node of the autograd graph saves. Only the first call of a trace counts.
  /// Throws WrittenOver where that was written over since, as PyTorch does when it is asked for
  /// (torch/csrc/autograd/saved_variable.cpp, unpack).
  void backward_begins(const tensor::Tensor& root) override;
  void node_runs(const tensor::Node& node) override;

  /// The graph, after the step. `parameters`: of the built model, in its order.
  ModelGraph finish(const std::vector<model::Parameter>& parameters);

 private:
  struct Keeper {
    std::uint32_t storage = 0;
    std::int32_t operation = -1;
  };
  std::uint32_t tensor_number(const tensor::Tensor& tensor);
  std::uint32_t new_number(const tensor::Tensor& tensor, std::int32_t producer);
  void check_writes(const tensor::Node& node) const;
  void make_layers();
  void count_saved();
  void mark_weight_copies();
  std::uint32_t layer_of(std::uint32_t module);

  /// An operator wrote over a storage that it read.
  struct Write {
    std::int32_t operation = -1;
    std::uint64_t sequence = 0;  // of the next node, then
  };

  const tensor::Runtime& runtime_;
  ModelGraph graph_;
  std::int32_t current_ = -1;  // the forward operator whose backward runs
  bool whole_ = false;         // the autograd graph has been read
  std::vector<Keeper> keepers_;
  std::unordered_multimap<std::uint32_t, Write> writes_;  // by storage
  std::vector<std::int32_t> maker_;  // of a storage: the operator that allocated it
  /// (producer, storage) -> tensor, of those that are no outputs of their producer.
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
  NameTable layer_numbers_;  // names are parts of modules' paths
  std::vector<std::uint32_t> layer_of_module_;
  std::vector<bool> copies_weights_;  // by operator: reads nothing but parameters
};

}  // namespace shardfit::graph
