#include "tensor/layout.h"

#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

constexpr int fastest_first[] = {1, 3, 2, 0};

void copy_backward(Node&, Gradients& in, Gradients& out) { out[0] = in[0]; }

}  // namespace

Shape channels_last_strides(const Shape& shape) {
  Shape stride = shape;
  std::int64_t step = 1;
  for (int dim : fastest_first) {
    stride[dim] = step;
    step *= shape[dim];
  }
  return stride;
}

bool is_channels_last(const Tensor& a) {
  if (a.rank() != 4) return false;
  std::int64_t step = 1;
  for (int dim : fastest_first) {
    if (a.size(dim) != 1 && a->stride[dim] != step) return false;
    step *= a.size(dim);
  }
  return true;
}

namespace {

bool strides_like_channels_last(const Shape& shape, const Shape& strides) {
  if (strides[1] == 0) return false;
  std::int64_t least = 0;
  for (int dim : fastest_first) {
    const std::int64_t stride = strides[dim];
    if (shape[dim] == 0 || stride < least) return false;
    if (dim == 0 && least == strides[1]) return false;
    least = stride;
    if (shape[dim] > 1) least *= shape[dim];
  }
  return true;
}

}  // namespace

bool suggests_channels_last(const Tensor& a) {
  return a.rank() == 4 && strides_like_channels_last(a.shape(), a->stride);
}

bool signal_suggests_channels_last(const Tensor& a) {
  if (a.rank() != 3) return false;
  Shape shape = a.shape();
  Shape stride = a->stride;
  stride.insert(2, a.size(2) * a->stride[2]);
  shape.insert(2, 1);
  return strides_like_channels_last(shape, stride);
}

Tensor empty_in(Runtime& runtime, const Shape& shape, DType dtype, bool channels_last) {
  return channels_last ? runtime.empty_strided(shape, channels_last_strides(shape), dtype)
                       : runtime.empty(shape, dtype);
}

Tensor contiguous_in(const Tensor& a, bool channels_last) {
  if (!channels_last) return contiguous(a);
  if (is_channels_last(a)) return a;
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "clone");
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("clone", copy_backward, 1);
    runtime.connect(*node.get(), 0, a);
  }
  Tensor out = empty_in(runtime, a.shape(), a.dtype(), true);
  if (runtime.watched()) runtime.ran("clone", {a}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
