#pragma once
// The backward pass (pytorch torch/csrc/autograd/engine.cpp).

#include <unordered_map>
#include <vector>

#include "tensor/node.h"

namespace shardfit::tensor {

/// Runs the graph of `root` from `gradient` down, accumulating into leaves: nodes in order of their
/// sequence numbers, highest first; a node's saved tensors go when it has run.
/// `caller` gradients stay alive as long as the caller holds them.
void run_backward(const Tensor& root, const Tensor& gradient);

/// torch.autograd.grad
struct GradientsAsked {
  std::vector<Edge> roots;        // outputs of nodes, ...
  std::vector<Tensor> gradients;  // ... a gradient each
  std::vector<Node*> wanted;      // nodes of leaves; null ones are unused
  bool retain = false;            // nodes keep what they saved
  /// Gets the gradients that arrive at these nodes (Node.register_prehook).
  std::unordered_map<const Node*, std::vector<Tensor>>* arriving = nullptr;
};
/// The gradients of the wanted leaves, which do not accumulate. Only nodes on the way to them run,
/// and these compute no other gradients.
std::vector<Tensor> gradients_of(const GradientsAsked& asked);
/// Which nodes behind `roots` lead to one of `leaves`, which are among them.
std::unordered_map<const Node*, bool> leading_to(const std::vector<Node*>& roots,
                                                 const std::vector<Node*>& leaves);

/// Sums `tensor` down to `shape` where it was broadcast from it; itself if the shapes are equal.
Tensor sum_to(const Tensor& tensor, const Shape& shape);

}  // namespace shardfit::tensor
