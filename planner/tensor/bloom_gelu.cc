// BLOOM's own activation: a function of Python with a backward of Python, so that every product is
// an operator of its own (transformers models/bloom/modeling_bloom.py, GeLUFunction).

#include "tensor/node.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// tanh(0.79788456 x (1 + 0.044715 x x))
Tensor inner_tanh(const Tensor& x) {
  Tensor scaled = mul_scalar(x);
  Tensor square = mul(mul_scalar(x), x);
  square = add_scalar(square);
  scaled = mul(scaled, square);
  square.reset();
  return tanh(scaled);
}

/// 0.5 x ((1 - t t) (0.79788456 + 0.1070322243 x x)) + 0.5 (1 + t), times the gradient.
void bloom_gelu_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor x = node.load(0);
  const Tensor t = inner_tanh(x);
  Tensor factor;
  {
    const Tensor half = mul_scalar(x);
    Tensor slope = mul(t, t);
    slope = neg(slope);  // 1 - t t is one operator on the product
    Tensor bend = mul(mul_scalar(x), x);
    bend = add_scalar(bend);
    Tensor product = mul(slope, bend);
    slope.reset();
    bend.reset();
    factor = mul(half, product);
  }
  Tensor rest = add_scalar(t);
  rest = mul_scalar(rest);
  factor = add(factor, rest);
  rest.reset();
  out[0] = mul(factor, in[0]);
}

}  // namespace

Tensor bloom_gelu(const Tensor& x) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "bloom_gelu");
  NodeRef node;
  if (runtime.grad_enabled && x.requires_grad()) {
    node = runtime.make_node("bloom_gelu", bloom_gelu_backward, 1);
    runtime.connect(*node.get(), 0, x);
  }
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    const Tensor half = mul_scalar(x);
    Tensor bent = inner_tanh(x);
    bent = add_scalar(bent);
    out = mul(half, bent);
  }
  if (node) {
    runtime.attach(node, out);
    node->save(x);
  }
  return out;
}

}  // namespace shardfit::tensor
