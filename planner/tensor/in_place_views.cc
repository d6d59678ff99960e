// Writing into a view: the tensor it was taken of gets a new history, and the view is taken of it
// anew (pytorch torch/csrc/autograd/functions/tensor.cpp, CopySlices; FunctionsManual.cpp,
// as_strided_backward).

#include "tensor/iterator.h"
#include "tensor/node.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// The gradient copied into a tensor laid out as the base; the view's part through the function's
/// backward and back.
void copy_slices_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor mask = node.load(0);
  out[0] = runtime.empty_strided(node.shape, node.stride, in[0].dtype());
  Tensor slice = runtime.empty(mask ? in[0].shape() : node.shape, in[0].dtype());
  const Tensor filled = runtime.empty(slice.shape(), in[0].dtype());
  slice.reset();
  if (runtime.watched()) runtime.ran("masked_fill", {in[0], mask}, {out[0]});
}

void as_strided_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = node.runtime->empty(node.shape, in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("as_strided", {in[0]}, {out[0]});
}

void fill_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor mask = node.load(0);
  out[0] = masked_fill(in[0], mask);
}

}  // namespace

Tensor masked_fill_in_place(const Tensor& x, const Tensor& mask) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "masked_fill");
  if (!(broadcast("masked_fill", x.shape(), mask.shape()) == x.shape())) {
    throw ShapeError("masked_fill: mask " + shape_text(mask.shape()) + " into " +
                     shape_text(x.shape()));
  }
  if (runtime.watched()) runtime.ran("masked_fill", {x, mask}, {x});
  if (!runtime.grad_enabled || !x.requires_grad()) return x;
  const bool view = static_cast<bool>(x->base);
  const Tensor base = view ? x->base : x;
  NodeRef node = runtime.make_node(view ? "copy_slices" : "masked_fill",
                                   view ? copy_slices_backward : fill_backward, 1);
  runtime.connect(*node.get(), 0, base);
  node->save(mask);
  node->shape = base.shape();
  node->stride = base->stride;
  runtime.attach(node, base);
  if (!view) return x;
  NodeRef again = runtime.make_node("as_strided", as_strided_backward, 1);
  runtime.connect(*again.get(), 0, base);
  again->shape = base.shape();
  Tensor out = runtime.view_of(base, x.shape(), x->stride);
  runtime.attach(again, out);
  return out;
}

}  // namespace shardfit::tensor
