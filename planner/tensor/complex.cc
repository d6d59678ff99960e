// Complex numbers as pairs of fp32 in the last dimension: the same bytes, the same strides.

#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// grad * other.conj(): the conjugate is written out before the product (ConjugateFallback.cpp).
void complex_mul_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor other = node.load(0);
  const Tensor conjugate = elementwise_output("conj", {other}, other.dtype());
  out[0] = elementwise_output(node.kind, {in[0], conjugate}, in[0].dtype());
}

void as_real_backward(Node&, Gradients& in, Gradients& out) { out[0] = contiguous(in[0]); }

}  // namespace

Tensor complex_mul(const Tensor& a, const Tensor& b) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "complex_mul");
  if (a.size(-1) != 2 || b.size(-1) != 2 || b.requires_grad()) {
    throw ShapeError("complex_mul: " + shape_text(a.shape()) + " times " + shape_text(b.shape()) +
                     ", the second a constant");
  }
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("complex_mul", complex_mul_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->save(b);
  }
  Tensor out = elementwise_output("complex_mul", {a, b}, a.dtype());
  if (node) runtime.attach(node, out);
  return out;
}

Tensor as_real(const Tensor& a) {
  Runtime& runtime = a.runtime();
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("as_real", as_real_backward, 1);
    runtime.connect(*node.get(), 0, a);
  }
  Tensor out = runtime.view_of(a, a.shape(), a->stride);
  runtime.viewed("as_real", a, out);
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
