#pragma once
// Memory formats of pictures: (batch, channels, height, width) in that order, or with the channels
// of a place together (c10/core/MemoryFormat.h).

#include "tensor/tensor.h"

namespace shardfit::tensor {

/// The strides of `shape` (4 dimensions) with the channels innermost.
Shape channels_last_strides(const Shape& shape);
/// A tensor of 4 dimensions is laid out so, dimensions of size 1 aside
/// (MemoryFormat.h, is_channels_last_contiguous_2d).
bool is_channels_last(const Tensor& a);
/// The format its strides speak for (TensorImpl.h, suggest_memory_format): a picture of one channel
/// or one place is in the plain order.
bool suggests_channels_last(const Tensor& a);
/// The same of a signal (batch, channels, length), taken as a picture of height 1.
bool signal_suggests_channels_last(const Tensor& a);
/// A new tensor in either format.
Tensor empty_in(Runtime& runtime, const Shape& shape, DType dtype, bool channels_last);
/// `a` itself where it is in the format, else a copy.
Tensor contiguous_in(const Tensor& a, bool channels_last);

}  // namespace shardfit::tensor
