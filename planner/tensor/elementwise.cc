#include <cmath>

#include "tensor/autocast.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

bool tracks(const Tensor& a) { return a.runtime().grad_enabled && a.requires_grad(); }

double bytes_of(const Tensor& a) {
  return a && !a->on_host ? static_cast<double>(a.count() * element_size(a.dtype())) : 0;
}

/// a is read and written, b read.
void in_place_ran(const char* kind, const Tensor& a, const Tensor& b = {}) {
  a.runtime().launched(kind, a.dtype(), 2 * bytes_of(a) + bytes_of(b));
}

/// A node over operands of which one at least wants a gradient; empty otherwise.
NodeRef node_for(const char* kind, Backward backward, std::initializer_list<Tensor> operands) {
  Runtime& runtime = operands.begin()->runtime();
  bool wanted = false;
  for (const Tensor& operand : operands) wanted = wanted || operand.requires_grad();
  if (!runtime.grad_enabled || !wanted) return {};
  NodeRef node = runtime.make_node(kind, backward, static_cast<int>(operands.size()));
  int place = 0;
  for (const Tensor& operand : operands) runtime.connect(*node.get(), place++, operand);
  return node;
}

/// A one-input operator: forward allocates the output, `saves` says what its backward needs.
enum class Saves { nothing, input, result };

Tensor unary(const char* kind, const Tensor& a, DType dtype, Saves saves, Backward backward) {
  const Scoped<const char*> label(a.runtime().label.kind, kind);
  NodeRef node;
  if (backward && tracks(a)) {
    node = a.runtime().make_node(kind, backward, 1);
    a.runtime().connect(*node.get(), 0, a);
    if (saves == Saves::input) node->save(a);
  }
  Tensor out = elementwise_output(kind, {a}, dtype);
  if (node) {
    a.runtime().attach(node, out);
    if (saves == Saves::result) node->save(out);
  }
  return out;
}

/// Backward of kinds whose own kernel takes the gradient and one saved tensor.
void one_kernel(Node& node, Gradients& in, Gradients& out) {
  if (!node.wants(0)) return;
  const Tensor saved = node.load(0);
  out[0] = elementwise_output(node.kind, {in[0], saved}, in[0].dtype());
}

/// The result comes first, so that its strides lead (Activation.cpp, threshold_backward).
void relu_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  out[0] = elementwise_output(node.kind, {result, in[0]}, in[0].dtype());
}

void add_backward(Node& node, Gradients& in, Gradients& out) {
  if (node.wants(1)) out[1] = in[0];
  if (node.wants(0)) out[0] = in[0];
}

void sub_backward(Node& node, Gradients& in, Gradients& out) {
  if (node.wants(1)) out[1] = neg(in[0]);
  if (node.wants(0)) out[0] = in[0];
}

void mul_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor other = node.load(0);
  const Tensor self = node.load(1);
  if (node.wants(1)) out[1] = mul(in[0], self);
  if (node.wants(0)) out[0] = mul(in[0], other);
}

void div_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor other = node.load(0);
  const Tensor self = node.load(1);
  if (node.wants(1)) {  // -grad * ((self / other) / other)
    const Tensor negative = neg(in[0]);
    const Tensor ratio = div(self, other);
    const Tensor twice = div(ratio, other);
    out[1] = mul(negative, twice);
  }
  if (node.wants(0)) out[0] = div(in[0], other);
}

void scale_backward(Node&, Gradients& in, Gradients& out) { out[0] = mul_scalar(in[0]); }
void div_scalar_backward(Node&, Gradients& in, Gradients& out) { out[0] = div_scalar(in[0]); }
void pass_backward(Node&, Gradients& in, Gradients& out) { out[0] = in[0]; }
void neg_backward(Node&, Gradients& in, Gradients& out) { out[0] = neg(in[0]); }

/// grad * (exponent * self ** (exponent - 1)); functions FunctionsManual.cpp, pow_backward.
void pow_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor self = node.load(0);
  const Tensor power = pow_scalar(self, static_cast<double>(node.number[0]) - 1);
  const Tensor scaled = mul_scalar(power);
  out[0] = mul(in[0], scaled);
}

void rsqrt_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  const Tensor power = pow_scalar(result, 3);
  const Tensor scaled = mul_scalar(in[0]);
  out[0] = mul(scaled, power);
}

void sqrt_backward(Node& node, Gradients& in, Gradients& out) {  // grad / (2 * result)
  const Tensor twice = mul_scalar(node.load(0));
  out[0] = div(in[0], twice);
}

/// -grad * (result * result)
void reciprocal_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  const Tensor squared = mul(result, result);
  const Tensor negative = neg(in[0]);
  out[0] = mul(negative, squared);
}

void exp_backward(Node& node, Gradients& in, Gradients& out) { out[0] = mul(in[0], node.load(0)); }

void cos_backward(Node& node, Gradients& in, Gradients& out) {  // grad * -self.sin()
  const Tensor sine = sin(node.load(0));
  const Tensor negative = neg(sine);
  out[0] = mul(in[0], negative);
}

void sin_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor cosine = cos(node.load(0));
  out[0] = mul(in[0], cosine);
}

void log_backward(Node& node, Gradients& in, Gradients& out) { out[0] = div(in[0], node.load(0)); }

void abs_backward(Node& node, Gradients& in, Gradients& out) {  // grad * self.sgn()
  const Tensor self = node.load(0);
  const Tensor sign = elementwise_output("sgn", {self}, self.dtype());
  out[0] = mul(in[0], sign);
}

void to_backward(Node& node, Gradients& in, Gradients& out) { out[0] = to(in[0], node.dtype); }

void dropout_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = elementwise_output(node.kind, {in[0], node.load(0)}, in[0].dtype());
}

/// where(condition, grad, 0) and where(condition, 0, grad): the zero is a tensor of its own.
void where_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor condition = node.load(0);
  for (int i : {0, 1}) {
    if (!node.wants(i)) continue;
    const Tensor zero = node.runtime->empty({}, in[0].dtype());
    out[static_cast<std::size_t>(i)] =
        elementwise_output(node.kind, {condition, in[0]}, in[0].dtype());
  }
}

void masked_fill_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = elementwise_output(node.kind, {in[0], node.load(0)}, in[0].dtype());
}

DType float_of(const Tensor& a) { return is_floating(a.dtype()) ? a.dtype() : DType::f32; }

/// A 0-dim tensor does not promote one that has dimensions, within the same kind of number.
DType result_dtype(const Tensor& a, const Tensor& b) {
  if (a.rank() == 0 && b.rank() > 0 && is_floating(a.dtype()) <= is_floating(b.dtype())) {
    return b.dtype();
  }
  if (b.rank() == 0 && a.rank() > 0 && is_floating(b.dtype()) <= is_floating(a.dtype())) {
    return a.dtype();
  }
  return promote(a.dtype(), b.dtype());
}

Tensor linear_binary(const char* kind, const Tensor& a, const Tensor& b, Backward backward) {
  const Scoped<const char*> label(a.runtime().label.kind, kind);
  NodeRef node = node_for(kind, backward, {a, b});
  Tensor out = elementwise_output(kind, {a, b}, result_dtype(a, b));
  if (node) a.runtime().attach(node, out);
  return out;
}

/// mul and div keep each operand where the other one wants a gradient.
Tensor product_binary(const char* kind, const Tensor& a, const Tensor& b, Backward backward,
                      bool needs_other) {
  const Scoped<const char*> label(a.runtime().label.kind, kind);
  NodeRef node = node_for(kind, backward, {a, b});
  if (node) {
    if (node->wants(0) || needs_other) {
      node->save(b);
    } else {
      node->skip();
    }
    if (node->wants(1)) {
      node->save(a);
    } else {
      node->skip();
    }
  }
  Tensor out = elementwise_output(kind, {a, b}, result_dtype(a, b));
  if (node) a.runtime().attach(node, out);
  return out;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return linear_binary("add", a, b, add_backward); }
Tensor sub(const Tensor& a, const Tensor& b) { return linear_binary("sub", a, b, sub_backward); }
Tensor mul(const Tensor& a, const Tensor& b) {
  return product_binary("mul", a, b, mul_backward, false);
}
Tensor div(const Tensor& a, const Tensor& b) {
  return product_binary("div", a, b, div_backward, true);
}

Tensor div_in_place(const Tensor& a, const Tensor& b) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "div");
  if (!(broadcast("div", a.shape(), b.shape()) == a.shape())) {
    throw ShapeError("div: " + shape_text(b.shape()) + " into " + shape_text(a.shape()));
  }
  NodeRef node = node_for("div", div_backward, {a, b});
  if (node) {
    node->save(b);
    if (node->wants(1)) {
      node->save(clone(detach(a), true));
    } else {
      node->skip();
    }
  }
  Tensor out = runtime.alias_of(a, a.shape(), a->stride);
  in_place_ran("div", a, b);
  if (node) runtime.attach(node, out);
  return out;
}

Tensor floor_divide(const Tensor& a) {
  return unary("floor_divide", a, a.dtype(), Saves::nothing, nullptr);
}

Tensor add_scalar(const Tensor& a) {
  return unary("add", a, a.dtype(), Saves::nothing, pass_backward);
}
Tensor mul_scalar(const Tensor& a) {
  return unary("mul", a, a.dtype(), Saves::nothing, scale_backward);
}
Tensor div_scalar(const Tensor& a) {
  return unary("div", a, float_of(a), Saves::nothing, div_scalar_backward);
}

void add_in_place(const Tensor& a, const Tensor& b) {
  in_place_ran("add", a, b);
  if (NodeRef node = node_for("add", add_backward, {a, b})) written_over(a, node);
}
void div_in_place(const Tensor& a) {
  in_place_ran("div", a);
  if (NodeRef node = node_for("div", div_scalar_backward, {a})) written_over(a, node);
}

void relu_in_place(const Tensor& a) {
  Runtime& runtime = a.runtime();
  NodeRef node = node_for("relu", relu_backward, {a});
  if (runtime.watched()) runtime.ran("relu", {a}, {a});
  if (!node) return;
  written_over(a, node);
  node->save(a);
}

void silu_in_place(const Tensor& a) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "silu");
  NodeRef node = node_for("silu", one_kernel, {a});
  if (node) node->save(clone(detach(a), true));
  if (runtime.watched()) runtime.ran("silu", {a}, {a});
  if (node) written_over(a, node);
}

Tensor pow_tensor(const Tensor& base, const Tensor& exponent) {
  const Scoped<const char*> label(base.runtime().label.kind, "pow");
  return elementwise_output("pow", {base, exponent}, promote(base.dtype(), exponent.dtype()));
}

Tensor pow_scalar(const Tensor& a, double exponent) {
  const Tensor x = cast_full(a);
  Tensor out = unary("pow", x, x.dtype(), Saves::input, pow_backward);
  if (out->grad_fn) out->grad_fn->number[0] = static_cast<std::int64_t>(exponent);
  return out;
}

Tensor exponential(const Tensor& a) {
  Tensor out = unary("pow", a, float_of(a), Saves::nothing, nullptr);
  a.runtime().scratch(8);
  return out;
}
Tensor reciprocal(const Tensor& a) {
  return unary("reciprocal", a, float_of(a), Saves::result, reciprocal_backward);
}
Tensor neg(const Tensor& a) { return unary("neg", a, a.dtype(), Saves::nothing, neg_backward); }
Tensor rsqrt(const Tensor& a) {
  const Tensor x = cast_full(a);
  return unary("rsqrt", x, float_of(x), Saves::result, rsqrt_backward);
}
Tensor sqrt(const Tensor& a) { return unary("sqrt", a, float_of(a), Saves::result, sqrt_backward); }
Tensor exp(const Tensor& a) {
  const Tensor x = cast_full(a);
  return unary("exp", x, float_of(x), Saves::result, exp_backward);
}
Tensor log(const Tensor& a) {
  const Tensor x = cast_full(a);
  return unary("log", x, float_of(x), Saves::input, log_backward);
}
Tensor clamp(const Tensor& a) { return unary("clamp", a, a.dtype(), Saves::nothing, nullptr); }
Tensor abs(const Tensor& a) { return unary("abs", a, a.dtype(), Saves::input, abs_backward); }
Tensor minimum(const Tensor& a, const Tensor& b) {
  const Scoped<const char*> label(a.runtime().label.kind, "minimum");
  return elementwise_output("minimum", {a, b}, result_dtype(a, b));
}
Tensor tanh(const Tensor& a) { return unary("tanh", a, float_of(a), Saves::result, one_kernel); }
Tensor sigmoid(const Tensor& a) {
  return unary("sigmoid", a, float_of(a), Saves::result, one_kernel);
}
Tensor relu(const Tensor& a) { return unary("relu", a, a.dtype(), Saves::result, relu_backward); }
Tensor softplus(const Tensor& a) {
  const Tensor x = cast_full(a);
  return unary("softplus", x, x.dtype(), Saves::input, one_kernel);
}
Tensor silu(const Tensor& a) { return unary("silu", a, a.dtype(), Saves::input, one_kernel); }
Tensor gelu(const Tensor& a) { return unary("gelu", a, a.dtype(), Saves::input, one_kernel); }
Tensor cos(const Tensor& a) { return unary("cos", a, float_of(a), Saves::input, cos_backward); }
Tensor sin(const Tensor& a) { return unary("sin", a, float_of(a), Saves::input, sin_backward); }

Tensor compare(const char* kind, const Tensor& a, const Tensor& b) {
  const Scoped<const char*> label(a.runtime().label.kind, kind);
  return elementwise_output(kind, {a, b}, DType::boolean);
}
Tensor compare_scalar(const char* kind, const Tensor& a) {
  return unary(kind, a, DType::boolean, Saves::nothing, nullptr);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Runtime& runtime = condition.runtime();
  const Scoped<const char*> label(runtime.label.kind, "where");
  const DType dtype = a && b ? promote(a.dtype(), b.dtype()) : (a ? a.dtype() : b.dtype());
  NodeRef node;
  if (runtime.grad_enabled && (a.requires_grad() || b.requires_grad())) {
    node = runtime.make_node("where", where_backward, 2);
    runtime.connect(*node.get(), 0, a);
    runtime.connect(*node.get(), 1, b);
    node->save(condition);
  }
  Tensor out = a && b ? elementwise_output("where", {condition, a, b}, dtype)
                      : elementwise_output("where", {condition, a ? a : b}, dtype);
  if (node) runtime.attach(node, out);
  return out;
}

Tensor masked_fill(const Tensor& a, const Tensor& mask) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "masked_fill");
  NodeRef node;
  if (tracks(a)) {
    node = runtime.make_node("masked_fill", masked_fill_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->save(mask);
  }
  const Shape shape = broadcast("masked_fill", a.shape(), mask.shape());
  Tensor out = shape == a.shape() ? elementwise_empty("masked_fill", {a}, a.dtype())
                                  : runtime.empty(shape, a.dtype());
  if (runtime.watched()) runtime.ran("masked_fill", {a, mask}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

Tensor to(const Tensor& a, DType dtype) {
  if (a.dtype() == dtype) return a;
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "to");
  NodeRef node;
  if (tracks(a) && is_floating(dtype)) {
    node = runtime.make_node("to", to_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->dtype = a.dtype();
  }
  Tensor out = a->on_host ? runtime.host_scalar(dtype) : elementwise_output("to", {a}, dtype);
  if (node) runtime.attach(node, out);
  return out;
}

Tensor clone(const Tensor& a, bool keep_strides) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "clone");
  NodeRef node;
  if (tracks(a)) {
    node = runtime.make_node("clone", pass_backward, 1);
    runtime.connect(*node.get(), 0, a);
  }
  Tensor out = keep_strides ? elementwise_empty("clone", {a}, a.dtype())
                            : runtime.empty(a.shape(), a.dtype());
  if (runtime.watched()) runtime.ran("clone", {a}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

Tensor dropout(const Tensor& a, double p) {
  if (p <= 0) return a;
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "dropout");
  NodeRef node;
  if (tracks(a)) {
    node = runtime.make_node("dropout", dropout_backward, 1);
    runtime.connect(*node.get(), 0, a);
  }
  const Tensor mask = elementwise_empty("dropout", {a}, DType::boolean);
  Tensor out = elementwise_empty("dropout", {a}, a.dtype());
  if (runtime.watched()) runtime.ran("dropout", {a}, {out, mask});
  if (node) {
    runtime.attach(node, out);
    node->save(mask);
  }
  return out;
}

Tensor zeros_like(const Tensor& a) {
  const Scoped<const char*> label(a.runtime().label.kind, "zeros_like");
  Tensor out = elementwise_empty("zeros_like", {a}, a.dtype());
  if (a.runtime().watched()) a.runtime().ran("zeros_like", {}, {out});
  return out;
}

Tensor detach(const Tensor& a) { return a.runtime().alias_of(a, a.shape(), a->stride); }

}  // namespace shardfit::tensor
