#pragma once
// What a loop over experts runs beyond indices and products.

#include "tensor/tensor.h"

namespace shardfit::tensor {

/// x.index_add_(0, index, source): rows of `source` are added to the rows of `x` that `index`
/// (int64, one a row of `source`) names. Keeps `index` and `source` for backward
/// (pytorch tools/autograd/derivatives.yaml, index_add). Throws ShapeError.
void index_add_in_place(const Tensor& x, const Tensor& index, const Tensor& source);

}  // namespace shardfit::tensor
