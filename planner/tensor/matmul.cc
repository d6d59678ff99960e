#include <cstring>

#include "tensor/autocast.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

Tensor t(const Tensor& a) { return transpose(a, 0, 1); }

void check_product(const char* kind, const Tensor& a, const Tensor& b) {
  const int rank = std::strstr(kind, "bmm") ? 3 : 2;
  if (a.rank() != rank || b.rank() != rank || a.size(-1) != b.size(-2) ||
      (rank == 3 && a.size(0) != b.size(0))) {
    throw ShapeError(std::string(kind) + ": " + shape_text(a.shape()) + " times " +
                     shape_text(b.shape()));
  }
}

bool column_major(const Shape& shape, const Shape& stride) {
  return stride[0] == 1 && stride[1] == shape[0];
}

void record(const char* kind, const Tensor& a, const Tensor& b, const Tensor& bias,
            const Tensor& out) {
  Runtime& runtime = a.runtime();
  if (!runtime.watched()) return;
  Compute c;
  c.m = a.size(-2);
  c.k = a.size(-1);
  c.n = b.size(-1);
  c.groups = a.rank() == 3 ? a.size(0) : 1;
  const double groups = static_cast<double>(c.groups);
  c.flops =
      2.0 * groups * static_cast<double>(c.m) * static_cast<double>(c.k) * static_cast<double>(c.n);
  if (bias) {
    runtime.ran(kind, {a, b, bias}, {out}, c);
  } else {
    runtime.ran(kind, {a, b}, {out}, c);
  }
}

/// Operands that are neither row- nor column-major are copied first (Blas.cpp, prepare_matrix).
Tensor prepare(const Tensor& a) {
  const std::int64_t rows = a.size(-2);
  const std::int64_t cols = a.size(-1);
  const std::int64_t s0 = a->stride[a.rank() - 2];
  const std::int64_t s1 = a->stride[a.rank() - 1];
  const bool row = s1 == 1 && s0 >= std::max<std::int64_t>(1, cols);
  const bool column = s0 == 1 && s1 >= std::max<std::int64_t>(1, rows);
  return row || column ? a : clone(a, false);
}

/// Gradients of a product, in the layout of the operand (FunctionsManual.cpp, mm_mat1_backward).
Tensor left_gradient(const Tensor& gradient, const Tensor& right, const Shape& shape,
                     const Shape& stride) {
  if (column_major(shape, stride)) return t(mm(right, t(gradient)));
  return mm(gradient, t(right));
}
Tensor right_gradient(const Tensor& gradient, const Tensor& left, const Shape& shape,
                      const Shape& stride) {
  if (column_major(shape, stride)) return t(mm(t(gradient), left));
  return mm(t(left), gradient);
}

/// What a product's backward needs of its operands' layouts.
struct ProductExtra : NodeExtra {
  Shape left_shape, left_stride, right_shape, right_stride;
};

NodeRef product_node(const char* kind, Backward backward, const Tensor& a, const Tensor& b,
                     const Tensor& bias) {
  Runtime& runtime = a.runtime();
  if (!runtime.grad_enabled || !(a.requires_grad() || b.requires_grad() || bias.requires_grad())) {
    return {};
  }
  NodeRef node = runtime.make_node(kind, backward, 3);
  runtime.connect(*node.get(), 0, a);
  runtime.connect(*node.get(), 1, b);
  runtime.connect(*node.get(), 2, bias);
  if (node->wants(0)) {
    node->save(b);
  } else {
    node->skip();
  }
  if (node->wants(1)) {
    node->save(a);
  } else {
    node->skip();
  }
  auto extra = std::make_unique<ProductExtra>();
  extra->left_shape = a.shape();
  extra->left_stride = a->stride;
  extra->right_shape = b.shape();
  extra->right_stride = b->stride;
  node->extra = std::move(extra);
  return node;
}

void mm_backward(Node& node, Gradients& in, Gradients& out) {
  const auto& extra = static_cast<const ProductExtra&>(*node.extra);
  const Tensor b = node.load(0);
  const Tensor a = node.load(1);
  if (node.wants(1)) out[1] = right_gradient(in[0], a, extra.right_shape, extra.right_stride);
  if (node.wants(0)) out[0] = left_gradient(in[0], b, extra.left_shape, extra.left_stride);
}

void addmm_backward(Node& node, Gradients& in, Gradients& out) {
  const auto& extra = static_cast<const ProductExtra&>(*node.extra);
  const Tensor b = node.load(0);
  const Tensor a = node.load(1);
  if (node.wants(0)) out[0] = left_gradient(in[0], b, extra.left_shape, extra.left_stride);
  if (node.wants(1)) out[1] = right_gradient(in[0], a, extra.right_shape, extra.right_stride);
  if (node.wants(2)) out[2] = in[0];
}

void bmm_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor b = node.load(0);
  const Tensor a = node.load(1);
  if (node.wants(1)) out[1] = bmm(transpose(a, 1, 2), in[0]);
  if (node.wants(0)) out[0] = bmm(in[0], transpose(b, 1, 2));
}

void baddbmm_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor b = node.load(0);
  const Tensor a = node.load(1);
  if (node.wants(0)) out[0] = mul_scalar(bmm(in[0], transpose(b, 1, 2)));
  if (node.wants(1)) out[1] = mul_scalar(bmm(transpose(a, 1, 2), in[0]));
  if (node.wants(2)) out[2] = in[0];
}

Tensor product(const char* kind, const Tensor& a, const Tensor& b, const Tensor& bias,
               Backward backward, const Shape& shape) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, kind);
  NodeRef node = product_node(kind, backward, a, b, bias);
  Tensor out;
  if (runtime.mode) {
    std::vector<Tensor> known = runtime.mode->before(kind);
    if (!known.empty()) out = std::move(known.front());
  }
  if (!out) {
    out = runtime.empty(shape, a.dtype());
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    const Tensor left = prepare(a);
    const Tensor right = prepare(b);
    runtime.use_blas();
    record(kind, left, right, bias, out);
    if (runtime.mode) runtime.mode->after(kind, {out});
  }
  if (node) runtime.attach(node, out);
  return out;
}

/// A matrix with leading dimensions as one matrix (LinearAlgebra.cpp, should_fold).
bool should_fold(const Tensor& a, const Tensor& b) {
  if (a.rank() < 3 || b.rank() > 2) return false;
  if (b.requires_grad()) return true;
  if (a.rank() == 2) return false;
  if (a.count() == 0) return true;
  for (int i = 0; i + 2 < a.rank(); ++i) {
    if (a->stride[i] != a->stride[i + 1] * a.size(i + 1)) return false;
  }
  return true;
}

Tensor batched(const Tensor& a, const Tensor& b) {
  Shape lead;
  const int rank = std::max(a.rank(), b.rank());
  for (int i = 0; i < rank - 2; ++i) {
    const std::int64_t m = i < a.rank() - 2 ? a.size(i) : 1;
    const std::int64_t n = i < b.rank() - 2 ? b.size(i) : 1;
    lead.push_back(std::max(m, n));
  }
  Shape a_shape = lead, b_shape = lead, out_shape = lead;
  a_shape.push_back(a.size(-2));
  a_shape.push_back(a.size(-1));
  b_shape.push_back(b.size(-2));
  b_shape.push_back(b.size(-1));
  out_shape.push_back(a.size(-2));
  out_shape.push_back(b.size(-1));
  const std::int64_t batch = lead.count();
  const Tensor left = reshape(expand(a, a_shape), Shape{batch, a.size(-2), a.size(-1)});
  const Tensor right = reshape(expand(b, b_shape), Shape{batch, b.size(-2), b.size(-1)});
  return unsafe_view(bmm(left, right), out_shape);
}

/// DeepSpeed's linear of ZeRO-3 keeps the parameter itself, not what it held in the forward
/// (deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3).
struct AutocastExtra : NodeExtra {
  bool enabled = false;
  DType dtype = DType::bf16;
};

/// matmul with a weight that needs a gradient: should_fold sees that, grad mode or not.
Tensor folded(const Tensor& x, const Tensor& weight) {
  const Tensor input = cast_low(x);
  Shape shape = input.shape();
  shape[-1] = weight.size(1);
  const Tensor rows = reshape(input, Shape{input.count() / input.size(-1), input.size(-1)});
  return unsafe_view(mm(rows, weight), shape);
}

void kept_linear_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const auto& extra = static_cast<const AutocastExtra&>(*node.extra);
  const Scoped<bool> on(runtime.autocast.enabled, extra.enabled);
  const Scoped<DType> dtype(runtime.autocast.dtype, extra.dtype);
  const Tensor x = node.load(0);
  const Tensor weight = node.load(1);
  const Tensor& gradient = in[0];
  const int rank = gradient.rank();
  if (node.wants(0)) out[0] = node.wants(1) ? folded(gradient, weight) : matmul(gradient, weight);
  if (node.wants(1)) {
    const Tensor rows =
        reshape(gradient, Shape{gradient.count() / gradient.size(-1), gradient.size(-1)});
    out[1] = matmul(t(rows), reshape(x, Shape{x.count() / x.size(-1), x.size(-1)}));
  }
  if (node.wants(2)) out[2] = sum_dims(gradient, (1U << (rank - 1)) - 1, false);
}

Tensor kept_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Runtime& runtime = x.runtime();
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    if (x.rank() == 2 && bias) {
      out = addmm(bias, x, t(weight));
    } else if (weight.requires_grad()) {
      out = folded(x, t(weight));
    } else {
      out = matmul(x, t(weight));
    }
  }
  const bool wanted = x.requires_grad() || weight.requires_grad() || bias.requires_grad();
  if (!runtime.grad_enabled || !wanted) return out;
  NodeRef node = runtime.make_node("linear", kept_linear_backward, 3);
  runtime.connect(*node.get(), 0, x);
  runtime.connect(*node.get(), 1, weight);
  runtime.connect(*node.get(), 2, bias);
  auto extra = std::make_unique<AutocastExtra>();
  extra->enabled = runtime.autocast.enabled;
  extra->dtype = runtime.autocast.dtype;
  node->extra = std::move(extra);
  runtime.attach(node, out);
  node->save(x);
  node->save(weight);
  if (bias) node->save(bias);
  return out;
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) {
  const Tensor y = cast_low(b);
  const Tensor x = cast_low(a);
  check_product("mm", x, y);
  return product("mm", x, y, {}, mm_backward, Shape{x.size(0), y.size(1)});
}

Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b) {
  const Tensor y = cast_low(b);
  const Tensor x = cast_low(a);
  const Tensor c = cast_low(bias);
  check_product("addmm", x, y);
  return product("addmm", x, y, c, addmm_backward, Shape{x.size(0), y.size(1)});
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  const Tensor y = cast_low(b);
  const Tensor x = cast_low(a);
  check_product("bmm", x, y);
  return product("bmm", x, y, {}, bmm_backward, Shape{x.size(0), x.size(1), y.size(2)});
}

Tensor baddbmm(const Tensor& start, const Tensor& a, const Tensor& b) {
  const Tensor y = cast_low(b);
  const Tensor x = cast_low(a);
  const Tensor c = cast_low(start);
  check_product("baddbmm", x, y);
  return product("baddbmm", x, y, c, baddbmm_backward, Shape{x.size(0), x.size(1), y.size(2)});
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  const Tensor y = cast_low(b);
  const Tensor x = cast_low(a);
  if (x.rank() < 2 || y.rank() < 2 || x.size(-1) != y.size(-2)) {
    throw ShapeError("matmul: " + shape_text(x.shape()) + " times " + shape_text(y.shape()));
  }
  if (x.rank() == 2 && y.rank() == 2) return mm(x, y);
  if (x.rank() == 2 && y.rank() > 2 && x.requires_grad()) {
    // A matrix before batches is turned round, folded and turned back, which copies.
    const int last = y.rank() - 1;
    const Tensor turned = transpose(y, last - 1, last);
    Shape shape = turned.shape();
    shape[-1] = x.size(0);
    const Tensor folded = reshape(turned, Shape{rows_of("matmul", turned), turned.size(-1)});
    return contiguous(transpose(unsafe_view(mm(folded, t(x)), shape), last - 1, last));
  }
  if (should_fold(x, y)) {
    Shape shape = x.shape();
    shape[-1] = y.size(1);
    const Tensor folded = reshape(x, Shape{rows_of("matmul", x), x.size(-1)});
    return unsafe_view(mm(folded, y), shape);
  }
  return batched(x, y);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (x.runtime().linear_keeps_parameters) {
    return kept_linear(x, weight, bias);
  }
  const Tensor b = cast_low(bias);
  const Tensor w = cast_low(weight);
  const Tensor input = cast_low(x);
  if (input.rank() < 1 || w.rank() != 2 || input.size(-1) != w.size(1) ||
      (b && (b.rank() != 1 || b.size(0) != w.size(0)))) {
    throw ShapeError("linear: input " + shape_text(input.shape()) + ", weight " +
                     shape_text(w.shape()) + (b ? ", bias " + shape_text(b.shape()) : ""));
  }
  if (!b) return matmul(input, t(w));
  if (input.rank() == 2) return addmm(b, input, t(w));
  if (input.contiguous()) {
    Shape shape = input.shape();
    shape[-1] = w.size(0);
    const Tensor flat = view(input, Shape{rows_of("linear", input), input.size(-1)});
    return view(addmm(b, flat, t(w)), shape);
  }
  const Tensor out = matmul(input, t(w));
  add_in_place(out, b);
  return out;
}

}  // namespace shardfit::tensor
