#pragma once
// What TensorIterator decides for elementwise operators: the broadcast shape and the strides of the
// output, which follow the inputs' (pytorch aten/src/ATen/TensorIterator.cpp).

#include <initializer_list>

#include "tensor/tensor.h"

namespace shardfit::tensor {

/// The shape two shapes broadcast to; throws ShapeError naming `kind`.
Shape broadcast(const char* kind, const Shape& a, const Shape& b);

/// Rows of a tensor seen as a matrix; throws ShapeError where they have no elements.
std::int64_t rows_of(const char* kind, const Tensor& a);

/// Allocates an output of an elementwise operator over `inputs`, without saying that it ran.
Tensor elementwise_empty(const char* kind, std::initializer_list<Tensor> inputs, DType dtype);

/// An elementwise operator over `inputs` runs: its output.
Tensor elementwise_output(const char* kind, std::initializer_list<Tensor> inputs, DType dtype);

}  // namespace shardfit::tensor
