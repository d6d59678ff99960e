#pragma once
// Casts that autocast makes before an operator (pytorch aten/src/ATen/autocast_mode.cpp): the
// arguments of the wrapped call, last one first.

#include "tensor/tensor.h"

namespace shardfit::tensor {

/// `tensor` in autocast's low precision where autocast is on and it is a floating tensor: what
/// linear, matmul, convolution and attention get. Weights (leaves that want a gradient) are cast
/// once a context.
Tensor cast_low(const Tensor& tensor);
/// `tensor` in fp32 where autocast is on: what pow, rsqrt, norms and losses get.
Tensor cast_full(const Tensor& tensor);
/// The dtype of an operator that autocast gives fp32 results (softmax, sum): `dtype` outside
/// autocast.
DType full_dtype(const Tensor& tensor, DType dtype);

}  // namespace shardfit::tensor
