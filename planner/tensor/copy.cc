#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// The gradient of what was written over, with zeros in the slice, and that of what was written:
/// the whole gradient copied, the slice cloned (torch/csrc/autograd/functions/tensor.cpp,
/// CopySlices and CopyBackwards).
void copy_slices_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const int dim = static_cast<int>(node.number[0]);
  Tensor result = runtime.empty_strided(node.shape, node.stride, in[0].dtype());
  Shape part = node.shape;
  part[dim] = node.number[1];
  const Tensor clone = runtime.empty(part, in[0].dtype());
  const double element = static_cast<double>(element_size(in[0].dtype()));
  runtime.launched("copy", in[0].dtype(),
                   2 * element * static_cast<double>(result.count() + clone.count()), 2);
  if (node.wants(0)) {
    const Tensor zeros = runtime.empty(part, in[0].dtype());
    out[0] = std::move(result);
  }
  if (node.wants(1)) out[1] = to(clone, node.dtype);
}

}  // namespace

Tensor copy_into(const Tensor& base, int dim, std::int64_t start, const Tensor& source) {
  Runtime& runtime = base.runtime();
  const Scoped<const char*> label(runtime.label.kind, "copy");
  const int i = dim < 0 ? dim + base.rank() : dim;
  Shape part = base.shape();
  part[i] = source.size(i);
  if (base.rank() != source.rank() || !(part == source.shape()) || start < 0 ||
      start + source.size(i) > base.size(i)) {
    throw ShapeError("copy: " + shape_text(source.shape()) + " at " + std::to_string(start) +
                     " of " + shape_text(base.shape()));
  }
  Tensor out = runtime.alias_of(base, base.shape(), base->stride);
  if (runtime.watched()) runtime.ran("copy", {source}, {out});
  if (runtime.grad_enabled && (base.requires_grad() || source.requires_grad())) {
    NodeRef node = runtime.make_node("copy", copy_slices_backward, 2);
    runtime.connect(*node.get(), 0, base);
    runtime.connect(*node.get(), 1, source);
    node->shape = base.shape();
    node->stride = base->stride;
    node->number = {i, source.size(i), 0, 0};
    node->dtype = source.dtype();
    runtime.attach(node, out);
  }
  return out;
}

}  // namespace shardfit::tensor
