#pragma once
// Clipping and loss scaling: what they allocate between backward and the optimizer.

#include <vector>

#include "tensor/tensor.h"

namespace shardfit::program {

/// torch.nn.utils.clip_grad_norm_ (torch/nn/utils/clip_grad.py): the norm of each gradient, at once or
/// one by one, their norm, then the gradients are scaled in place.
void clip_gradients(const std::vector<tensor::Tensor>& parameters, bool foreach);

/// GradScaler.unscale_ (torch/amp/grad_scaler.py): a flag for each dtype, kept until the update.
void unscale_gradients(const std::vector<tensor::Tensor>& parameters,
                       std::vector<tensor::Tensor>& found_infinite);

}  // namespace shardfit::program
