#pragma once
// Backward passes of a pipeline's stage in two parts: first the gradient of its input, later those
// of its parameters (torch/distributed/pipelining/_backward.py).

#include <vector>

#include "model/machine.h"
#include "tensor/node.h"

namespace shardfit::program::pipelining {

/// Parameters whose gradients are taken together, the nodes where their own part of the graph meets
/// the way from the input to the output, and the gradients that arrived there.
struct WeightGroup {
  std::vector<tensor::Tensor> parameters;
  std::vector<tensor::NodeRef> intermediates;
  std::vector<std::vector<tensor::Tensor>> gradients;
};

/// stage_backward_input: the gradient of `input`. `end` loses its history, the groups keep what is
/// needed of it.
tensor::Tensor backward_of_input(const tensor::Tensor& end, const tensor::Tensor& gradient,
                                 const tensor::Tensor& input,
                                 const std::vector<model::Parameter>& parameters,
                                 std::vector<WeightGroup>& groups);

/// stage_backward_weight: adds to the gradients of the parameters.
void backward_of_weights(std::vector<WeightGroup>& groups);

}  // namespace shardfit::program::pipelining
