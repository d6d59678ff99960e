#pragma once
#include "tensor/tensor.h"

namespace shardfit::tensor {

/// The gradient of an embedding's weight of that shape, from the gradient of its rows and the
/// indices they were taken at (aten/src/ATen/native/cuda/Embedding.cu,
/// embedding_dense_backward_cuda).
Tensor embedding_gradient(const Tensor& of_rows, const Tensor& indices, const Shape& shape);

}  // namespace shardfit::tensor
