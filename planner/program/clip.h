#pragma once
// Clipping and loss scaling: what they allocate between backward and the optimizer.

#include <functional>
#include <vector>

#include "tensor/tensor.h"

namespace shardfit::program {

/// Where gradients are parts of whole ones.
struct ClippedParts {
  /// Makes norms of whole gradients out of those of parts.
  std::function<tensor::Tensor(const tensor::Tensor&)> whole_norms;
  /// So many norms are divided by the number of ranks that have the same one.
  std::size_t shared = 0;
  /// Gradients summed over ranks, of which the norms are taken.
  std::function<std::vector<tensor::Tensor>()> summed;
  /// Elements of the largest gradient, where it is more than its parameter has here.
  std::int64_t largest = 0;
};

/// torch.nn.utils.clip_grad_norm_ (torch/nn/utils/clip_grad.py): the norm of each gradient, at once
/// or one by one, their norm, then the gradients are scaled in place. Gives the norm.
tensor::Tensor clip_gradients(const std::vector<tensor::Tensor>& parameters, bool foreach,
                              const ClippedParts& parts = {});

/// GradScaler.unscale_ (torch/amp/grad_scaler.py): the inverse of the scale by way of fp64, copies
/// for the device of the gradients. Returns the flag that is kept until the scale's update.
tensor::Tensor unscale_gradients(const tensor::Tensor& scale);

}  // namespace shardfit::program
