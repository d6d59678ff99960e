#pragma once
// Who watches operators run: the model's graph is drawn from these calls.

#include <vector>

#include "tensor/program.h"
#include "tensor/tensor.h"

namespace shardfit::tensor {

/// Sees every operator of a runtime that has it set; nothing is built or called where none is set.
struct OperatorRecorder {
  virtual ~OperatorRecorder() = default;
  /// An operator ran, a view too (then cost.bytes is 0). Gives the operator's number, which its
  /// outputs carry as `producer`, or -1.
  virtual std::int32_t ran(const Compute& cost, Tensors inputs, Tensors outputs) = 0;
  /// The backward pass from `root` is about to begin: the autograd graph is whole.
  virtual void backward_begins(const Tensor& root) = 0;
  /// The node whose backward runs from now on.
  virtual void node_runs(const Node& node) = 0;
};

}  // namespace shardfit::tensor
