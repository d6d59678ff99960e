// Functions that libraries write in Python with a backward of their own (torch.autograd.Function):
// a node, operators without a graph inside. Python takes the gradients over and drops them when its
// backward returns (pytorch torch/csrc/autograd/python_function.cpp, PyNode::apply).

#include "tensor/node.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {

NodeRef function_node(const char* kind, Backward backward, std::initializer_list<Tensor> inputs) {
  bool tracked = false;
  Runtime* runtime = nullptr;
  for (const Tensor& input : inputs) {
    if (!input) continue;
    runtime = &input.runtime();
    tracked = tracked || input.requires_grad();
  }
  if (!runtime || !runtime->grad_enabled || !tracked) return {};
  NodeRef node = runtime->make_node(kind, backward, static_cast<int>(inputs.size()));
  int place = 0;
  for (const Tensor& input : inputs) runtime->connect(*node.get(), place++, input);
  return node;
}

namespace {

void pass_on(Node&, Gradients& in, Gradients& out) { out[0] = std::move(in[0]); }

std::vector<Tensor> halves(const Tensor& x) {
  const std::int64_t width = x.size(-1);
  return split(x, {width / 2, width - width / 2}, -1);
}

/// cat(g sigmoid(a) (1 + a (1 - sigmoid(a))) b, g silu(a)) of the halves a and b of x.
Tensor swiglu_gradient(const Tensor& g, const Tensor& x) {
  const std::vector<Tensor> part = halves(x);
  Tensor first;
  {
    Tensor scaled;
    {
      const Tensor gate = sigmoid(part[0]);
      scaled = mul(g, gate);
    }
    Tensor bend;
    {
      Tensor gate = sigmoid(part[0]);
      gate = neg(gate);  // 1 - sigmoid is one operator
      bend = mul(part[0], gate);
    }
    bend = add_scalar(bend);
    Tensor slope = mul(scaled, bend);
    scaled.reset();
    bend.reset();
    first = mul(slope, part[1]);
  }
  Tensor second;
  {
    const Tensor gate = silu(part[0]);
    second = mul(g, gate);
  }
  return cat({first, second}, -1);
}

void swiglu_backward(Node& node, Gradients& in, Gradients& out) {
  {
    const Tensor x = node.load(0);
    out[0] = swiglu_gradient(in[0], x);
  }
  in[0].reset();
}

Tensor gated(const Tensor& x) {
  const std::vector<Tensor> part = halves(x);
  const Tensor gate = silu(part[0]);
  return mul(gate, part[1]);
}

void weighted_swiglu_backward(Node& node, Gradients& in, Gradients& out) {
  {
    const Tensor x = node.load(0);
    const Tensor weights = node.load(1);
    {
      const Tensor scaled = mul(in[0], weights);
      out[0] = swiglu_gradient(scaled, x);
    }
    Tensor own;
    {
      const Tensor product = gated(x);
      const Tensor wide = to(in[0], weights.dtype());
      own = mul(product, wide);
    }
    out[1] = sum_dims(own, 1U << (own.rank() - 1), true);
  }
  in[0].reset();
}

/// tanh(0.79788456 x (1 + 0.044715 x x))
Tensor bent(const Tensor& x) {
  Tensor scaled = mul_scalar(x);
  Tensor square;
  {
    const Tensor small = mul_scalar(x);
    square = mul(small, x);
  }
  square = add_scalar(square);
  Tensor product = mul(scaled, square);
  scaled.reset();
  square.reset();
  return tanh(product);
}

void bias_gelu_backward(Node& node, Gradients& in, Gradients& out) {
  {
    const Tensor y = node.load(0);
    const Tensor bias = node.load(1);
    const Tensor x = add(bias, y);
    const Tensor t = bent(x);
    Tensor factor;
    {
      Tensor left;
      {
        const Tensor half = mul_scalar(x);
        Tensor slope = mul(t, t);
        slope = neg(slope);  // 1 - t t
        Tensor bend;
        {
          const Tensor small = mul_scalar(x);
          bend = mul(small, x);
        }
        bend = add_scalar(bend);
        Tensor product = mul(slope, bend);
        slope.reset();
        bend.reset();
        left = mul(half, product);
      }
      Tensor right = add_scalar(t);
      right = mul_scalar(right);
      factor = add(left, right);
    }
    out[0] = mul(factor, in[0]);
    out[1] = out[0];
  }
  in[0].reset();
}

}  // namespace

Tensor swiglu(const Tensor& x) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "swiglu");
  const NodeRef node = function_node("swiglu", swiglu_backward, {x});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    out = gated(x);
  }
  if (node) {
    runtime.attach(node, out);
    node->save(x);
  }
  return out;
}

Tensor weighted_swiglu(const Tensor& x, const Tensor& weights) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "swiglu");
  const NodeRef node = function_node("weighted_swiglu", weighted_swiglu_backward, {x, weights});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    const Tensor product = gated(x);
    out = mul(product, weights);
    if (out.dtype() != x.dtype()) out = to(out, x.dtype());
  }
  if (node) {
    runtime.attach(node, out);
    node->save(x);
    node->save(weights);
  }
  return out;
}

Tensor bias_gelu(const Tensor& y, const Tensor& bias) {
  Runtime& runtime = y.runtime();
  const Scoped<const char*> label(runtime.label.kind, "bias_gelu");
  const NodeRef node = function_node("bias_gelu", bias_gelu_backward, {y, bias});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    const Tensor x = add(bias, y);
    const Tensor half = mul_scalar(x);
    Tensor t = bent(x);
    t = add_scalar(t);
    out = mul(half, t);
  }
  if (node) {
    runtime.attach(node, out);
    node->save(y);
    node->save(bias);
  }
  return out;
}

Tensor viewless(const Tensor& x) {
  if (!x->base) return x;
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "viewless");
  const NodeRef node = function_node("viewless", pass_on, {x});
  runtime.empty(Shape{1}, x.dtype());
  Tensor out = runtime.alias_of(x, x.shape(), x->stride);
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
