// Writing into a view: the tensor it was taken of gets a new history, and the view is taken of it
// anew (pytorch torch/csrc/autograd/functions/tensor.cpp, CopySlices; FunctionsManual.cpp,
// as_strided_backward).

#include "tensor/iterator.h"
#include "tensor/node.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// What a view's writer does to the tensor that the view was taken of.
struct Slices : NodeExtra {
  Shape base, base_stride, view;
  Backward written = nullptr;  // the writer's own backward
};

/// The gradient copied into a tensor laid out as the base; the view's part of it through the
/// writer's backward, which gets a copy of it, and back.
void copy_slices_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Slices& slices = static_cast<const Slices&>(*node.extra);
  const DType dtype = in[0].dtype();
  Tensor result = runtime.empty_strided(slices.base, slices.base_stride, dtype);
  Gradients part(1), given(out.size());
  part[0] = runtime.empty(slices.view, dtype);
  const double bytes = static_cast<double>(part[0].count() * element_size(dtype));
  runtime.launched("copy", dtype,
                   2.0 * (bytes + static_cast<double>(result.count() * element_size(dtype))));
  slices.written(node, part, given);
  part.clear();
  runtime.launched("copy", dtype, 2.0 * bytes);
  out[0] = std::move(result);
  for (std::size_t i = 1; i < out.size(); ++i) out[i] = std::move(given[i]);
}

void as_strided_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = node.runtime->empty_strided(node.shape, node.stride, in[0].dtype());
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
  const NodeRef node = runtime.make_node("masked_fill", fill_backward, 1);
  runtime.connect(*node.get(), 0, x);
  node->save(mask);
  written_over(x, node);
  return x;
}

void written_over(const Tensor& a, const NodeRef& writer) {
  Runtime& runtime = a.runtime();
  const Tensor base = a->base;
  if (!base) return runtime.attach(writer, a);
  auto slices = std::make_unique<Slices>();
  slices->base = base.shape();
  slices->base_stride = base->stride;
  slices->view = a.shape();
  slices->written = std::exchange(writer->backward, copy_slices_backward);
  writer->extra = std::move(slices);
  writer->next[0] = {};
  writer->operation = a->producer;  // not that of the base
  runtime.connect(*writer.get(), 0, base);
  runtime.attach(writer, base);
  const NodeRef again = runtime.make_node("as_strided", as_strided_backward, 1);
  runtime.connect(*again.get(), 0, base);
  again->shape = base.shape();
  again->stride = base->stride;
  runtime.attach(again, a);
}

}  // namespace shardfit::tensor
