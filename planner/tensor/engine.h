#pragma once
// The backward pass (pytorch torch/csrc/autograd/engine.cpp).

#include <vector>

#include "tensor/node.h"

namespace shardfit::tensor {

/// Runs the graph of `root` from `gradient` down, accumulating into leaves: nodes in order of their
/// sequence numbers, highest first; a node's saved tensors go when it has run.
/// `caller` gradients stay alive as long as the caller holds them.
void run_backward(const Tensor& root, const Tensor& gradient);

/// torch.autograd.grad: the gradients of `wanted` tensors (leaves), which do not accumulate. Only
/// nodes on the way to them run, and these compute no other gradients.
std::vector<Tensor> gradients_of(const Tensor& root, const Tensor& gradient,
                                 const std::vector<Tensor>& wanted);

/// Sums `tensor` down to `shape` where it was broadcast from it; itself if the shapes are equal.
Tensor sum_to(const Tensor& tensor, const Shape& shape);

}  // namespace shardfit::tensor
