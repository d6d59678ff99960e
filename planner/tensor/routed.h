#pragma once
// What a loop over experts runs beyond indices and products.

#include "tensor/tensor.h"

namespace shardfit::tensor {

/// x.index_add_(0, index, source): rows of `source` are added to the rows of `x` that `index`
/// (int64, one a row of `source`) names. Keeps `index` and `source` for backward
/// (pytorch tools/autograd/derivatives.yaml, index_add). Throws ShapeError.
void index_add_in_place(const Tensor& x, const Tensor& index, const Tensor& source);

/// x.masked_select(mask): the `count` elements of x, (count), where `mask` is true; x and mask
/// broadcast against each other. The places are found first (cuda/Nonzero.cu, cuda/IndexKernel.cpp,
/// masked_select_out_cuda_impl). Keeps x and the mask for backward, where it carries a gradient.
Tensor masked_select(const Tensor& x, const Tensor& mask, std::int64_t count);

/// x.index_select(0, rows): row by row, (rows, ...); backward adds the gradient's rows to zeros
/// (FunctionsManual.cpp, index_select_backward_symint).
Tensor index_select(const Tensor& x, const Tensor& rows);

/// x.scatter(dim, indices, source): a copy of x with elements of `source`, or a number where it is
/// empty, along `dim` (TensorAdvancedIndexing.cpp, scatter). Keeps the indices where `source`
/// carries a gradient.
Tensor scatter(const Tensor& x, int dim, const Tensor& indices, const Tensor& source);

/// x.scatter_add_(0, rows as wide as x, source): rows of `source` are added to those of `x` that
/// `rows` names; keeps `rows` for backward, which gathers (derivatives.yaml, scatter_add).
void scatter_add_rows(const Tensor& x, const Tensor& rows, const Tensor& source);

}  // namespace shardfit::tensor
