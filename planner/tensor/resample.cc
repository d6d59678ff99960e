#include "tensor/autocast.h"
#include "tensor/layout.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// number: the factor.
void upsample_backward(Node& node, Gradients& in, Gradients& out) {
  const bool last = suggests_channels_last(in[0]);
  out[0] = empty_in(*node.runtime, node.shape, in[0].dtype(), last);
  const Tensor gradient = contiguous_in(in[0], last);
  if (node.runtime->watched()) node.runtime->ran("upsample", {gradient}, {out[0]});
}

/// The inner part of the gradient, copied (PadNd.cpp, constant_pad_nd with the widths negated).
void pad_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = node.runtime->empty(node.shape, in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("pad", {in[0]}, {out[0]});
}

Tensor rolled(const Tensor& a, const std::vector<int>& dims) {
  Tensor out = a;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    Tensor next = a.runtime().empty(a.shape(), a.dtype());
    if (a.runtime().watched()) a.runtime().ran("roll", {out}, {next});
    out = std::move(next);
  }
  return out;
}

void roll_backward(Node& node, Gradients& in, Gradients& out) {
  std::vector<int> dims;
  for (const std::int64_t dim : node.sizes) dims.push_back(static_cast<int>(dim));
  out[0] = rolled(in[0], dims);
}

void noise_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = mul(in[0], node.load(0));
}

}  // namespace

Tensor upsample_nearest2d(const Tensor& x_in, std::int64_t factor) {
  const Tensor x = cast_full(x_in);
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "upsample");
  if (x.rank() != 4 || factor < 1) throw ShapeError("upsample: input " + shape_text(x.shape()));
  NodeRef node;
  if (runtime.grad_enabled && x.requires_grad()) {
    node = runtime.make_node("upsample", upsample_backward, 1);
    runtime.connect(*node.get(), 0, x);
    node->shape = x.shape();
  }
  const bool last = suggests_channels_last(x);
  const Shape shape{x.size(0), x.size(1), x.size(2) * factor, x.size(3) * factor};
  Tensor out = empty_in(runtime, shape, x.dtype(), last);
  const Tensor input = contiguous_in(detach(x), last);
  if (runtime.watched()) runtime.ran("upsample", {input}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

Tensor pad(const Tensor& a, const std::vector<std::int64_t>& widths) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "pad");
  if (widths.size() % 2 != 0 || static_cast<int>(widths.size()) > 2 * a.rank()) {
    throw ShapeError("pad: " + std::to_string(widths.size()) + " widths for " +
                     shape_text(a.shape()));
  }
  Shape shape = a.shape();
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const int dim = a.rank() - 1 - static_cast<int>(i / 2);
    shape[dim] += widths[i];
    if (shape[dim] < 0) throw ShapeError("pad: nothing is left of " + shape_text(a.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("pad", pad_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->shape = a.shape();
  }
  Tensor out = runtime.empty(shape, a.dtype());
  if (runtime.watched()) runtime.ran("pad", {a}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

Tensor roll(const Tensor& a, const std::vector<int>& dims) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "roll");
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("roll", roll_backward, 1);
    runtime.connect(*node.get(), 0, a);
    for (const int dim : dims) node->sizes.push_back(dim);
  }
  Tensor out = rolled(detach(a), dims);
  if (node) runtime.attach(node, out);
  return out;
}

void dropout_in_place(const Tensor& a, double p) {
  if (p <= 0) return;
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "dropout");
  const Tensor noise = runtime.empty(a.shape(), a.dtype());
  if (runtime.watched()) runtime.ran("dropout", {a, noise}, {a});
  if (!runtime.grad_enabled || !a.requires_grad()) return;
  const NodeRef node = runtime.make_node("dropout", noise_backward, 1);
  runtime.connect(*node.get(), 0, a);
  node->save(noise);
  written_over(a, node);
}

}  // namespace shardfit::tensor
