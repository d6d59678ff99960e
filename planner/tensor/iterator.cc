#include "tensor/iterator.h"

#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + ")";
}

std::int64_t rows_of(const char* kind, const Tensor& a) {
  if (a.rank() == 0 || a.size(-1) == 0) {
    throw ShapeError(std::string(kind) + ": " + shape_text(a.shape()) + " has rows of no elements");
  }
  return a.count() / a.size(-1);
}

Shape broadcast(const char* kind, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const Shape& longer = a.rank >= b.rank ? a : b;
  const Shape& shorter = a.rank >= b.rank ? b : a;
  Shape out = longer;
  const int lead = longer.rank - shorter.rank;
  for (int i = 0; i < shorter.rank; ++i) {
    const std::int64_t n = longer[lead + i];
    const std::int64_t m = shorter[i];
    if (n != m && n != 1 && m != 1) {
      throw ShapeError(std::string(kind) + ": " + shape_text(a) + " and " + shape_text(b) +
                       " do not broadcast");
    }
    out[lead + i] = n == 1 ? m : n;
  }
  return out;
}

namespace {

/// Strides of an operand in the broadcast shape: 0 where it is repeated.
Shape expanded_strides(const Tensor& operand, const Shape& shape) {
  Shape stride;
  stride.rank = shape.rank;
  const int lead = shape.rank - operand.rank();
  for (int i = 0; i < operand.rank(); ++i) {
    const bool repeated = operand.size(i) == 1 && shape[lead + i] != 1;
    stride[lead + i] = repeated ? 0 : operand->stride[i];
  }
  return stride;
}

/// reorder_dimensions: -1, 0 or 1 as dim0 belongs inside dim1, is undecided, or outside it.
int compare_dims(const Shape* strides, int n, const Shape& shape, int dim0, int dim1) {
  for (int i = 0; i < n; ++i) {
    const std::int64_t stride0 = strides[i][dim0];
    const std::int64_t stride1 = strides[i][dim1];
    if (stride0 == 0 || stride1 == 0) continue;
    if (stride0 < stride1) return -1;
    if (stride0 > stride1) return 1;
    if (shape[dim0] > shape[dim1]) return 1;
  }
  return 0;
}

Shape permuted_strides(const Shape* strides, int n, const Shape& shape) {
  int order[max_dims];  // fastest first
  const int rank = shape.rank;
  for (int i = 0; i < rank; ++i) order[i] = rank - 1 - i;
  for (int i = 1; i < rank; ++i) {
    int dim1 = i;
    for (int dim0 = i - 1; dim0 >= 0; --dim0) {
      const int order_of = compare_dims(strides, n, shape, order[dim0], order[dim1]);
      if (order_of > 0) {
        std::swap(order[dim0], order[dim1]);
        dim1 = dim0;
      } else if (order_of < 0) {
        break;
      }
    }
  }
  Shape out;
  out.rank = rank;
  std::int64_t step = 1;
  for (int i = 0; i < rank; ++i) {
    out[order[i]] = step;
    step *= shape[order[i]];
  }
  return out;
}

}  // namespace

Tensor elementwise_output(const char* kind, std::initializer_list<Tensor> inputs, DType dtype) {
  Tensor out = elementwise_empty(kind, inputs, dtype);
  Runtime& runtime = out.runtime();
  if (runtime.watched()) runtime.ran(kind, inputs, {out});
  return out;
}

Tensor elementwise_empty(const char* kind, std::initializer_list<Tensor> inputs, DType dtype) {
  Shape shape = inputs.begin()->shape();
  bool all_contiguous = true;
  bool same_shape = true;
  Runtime& runtime = inputs.begin()->runtime();
  for (const Tensor& input : inputs) {
    if (!(input.shape() == shape)) {
      same_shape = false;
      shape = broadcast(kind, shape, input.shape());
    }
  }
  for (const Tensor& input : inputs) all_contiguous = all_contiguous && input.contiguous();
  if (same_shape && all_contiguous) return runtime.empty(shape, dtype);
  if (same_shape) {
    bool same = inputs.begin()->dense();
    for (const Tensor& input : inputs) same = same && input->stride == (*inputs.begin())->stride;
    if (same) return runtime.empty_strided(shape, (*inputs.begin())->stride, dtype);
  }
  Shape strides[4];
  int n = 0;
  for (const Tensor& input : inputs) strides[n++] = expanded_strides(input, shape);
  return runtime.empty_strided(shape, permuted_strides(strides, n, shape), dtype);
}

}  // namespace shardfit::tensor
