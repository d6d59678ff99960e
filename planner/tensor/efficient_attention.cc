#include <algorithm>

#include "tensor/attention_kernels.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// Memory of (batch, length, heads, dim) seen as (batch, heads, length, dim), as the kernel lays it
/// out.
Tensor heads_inside(Runtime& runtime, std::int64_t b, std::int64_t h, std::int64_t s,
                    std::int64_t d, DType dtype) {
  return runtime.empty_strided(Shape{b, h, s, d}, Shape{s * h * d, d, h * d, 1}, dtype);
}

/// The backward kernel that takes heads of a given width: rows and columns of its tile of the
/// query's gradient, and whether the gradients of key and value are summed in fp32 beside it.
struct BackwardKernel {
  std::int64_t rows = 64;
  std::int64_t columns = 64;
  bool sums_key_value = false;
};

/// The first kernel that fits (transformers/cuda/mem_eff_attention/kernels/cutlassB.h).
BackwardKernel backward_kernel(const DeviceTraits& device, bool half, bool dropout,
                               std::int64_t width) {
  if (width <= 64) return {};
  if (!half) return {device.capability_major >= 8 ? 128 : 64, 64, false};
  if (width > 128) return {128, 64, true};
  const bool small_memory = device.capability_major == 8 &&
                            (device.capability_minor == 6 || device.capability_minor == 9);
  const bool narrow = small_memory && !dropout && width <= 96;
  const bool wide = device.capability_major >= 8 && !narrow;
  return {128, wide ? 128 : 64, false};
}

/// Floats of a head's workspace: a tile of the query's gradient with a lock for every block of rows
/// and columns, and the fp32 sums (kernel_backward.h, Params::workspace_size).
std::int64_t workspace_floats(const BackwardKernel& kernel, const Tensor& q, const Tensor& k,
                              const Tensor& v) {
  const std::int64_t blocks = round_up(q.size(2), kernel.rows) / kernel.rows *
                              (round_up(q.size(3), kernel.columns) / kernel.columns);
  std::int64_t floats = blocks * (4 + kernel.rows * kernel.columns);
  if (kernel.sums_key_value) {
    // One staging area for each split of the keys (attention_backward.cu: at most 200 in all).
    const std::int64_t most = round_up(k.size(2), 64) / 64;
    const std::int64_t splits = std::min(most, 200 / (q.size(0) * q.size(1)));
    floats += 64 * std::max<std::int64_t>(splits, 1) *
              (round_up(k.size(3), kernel.rows) + round_up(v.size(3), kernel.rows));
  }
  return round_up(floats, 4);
}

/// sum(gradient * output) of every row: the kernel's own work in half precision, three operators in
/// fp32.
Tensor row_products(Runtime& runtime, const Tensor& gradient, const Tensor& output, bool half) {
  const std::int64_t b = output.size(0), s = output.size(1), h = output.size(2);
  if (half) return runtime.empty(Shape{b, h, s}, DType::f32);
  const Tensor products = mul(gradient, output);
  const Tensor sums = sum_dims(products, 1U << 3, false);
  return contiguous(transpose(sums, -2, -1));
}

/// gq, gk, gv, delta, workspace (transformers/cuda/attention_backward.cu,
/// _efficient_attention_backward).
void efficient_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor k = node.load(0);
  const Tensor q = node.load(1);
  const Tensor v = node.load(2);
  const Tensor mask = node.load(3);
  const Tensor lse = node.load(5);
  const Tensor result = node.load(4);
  const Tensor gradient = contiguous(transpose(in[0], 1, 2));
  const std::int64_t b = q.size(0), h = q.size(1), s = q.size(2), t = k.size(2);
  const bool half = is_half(q.dtype());
  out[0] = heads_inside(runtime, b, h, s, q.size(3), q.dtype());
  out[1] = heads_inside(runtime, b, h, t, k.size(3), q.dtype());
  out[2] = heads_inside(runtime, b, h, t, v.size(3), q.dtype());
  if (node.wants(3)) {  // rows of the mask's gradient start on 16 elements
    Shape shape = mask.shape();
    shape[-1] = round_up(shape[-1], 16);
    out[3] = slice(runtime.empty(shape, mask.dtype()), -1, 0, mask.size(-1));
  }
  const Tensor delta = row_products(runtime, gradient, transpose(result, 1, 2), half);
  const BackwardKernel kernel =
      backward_kernel(runtime.device, half, node.number[0] != 0, std::max(q.size(3), v.size(3)));
  runtime.scratch(4 * b * h * workspace_floats(kernel, q, k, v));
  AttentionArguments shape;
  shape.query = q;
  shape.key = k;
  shape.value = v;
  if (runtime.watched()) {  // the output it reads is as large as its gradient
    record_attention("efficient_attention", shape, {out[0], out[1], out[2]}, {gradient, in[0]});
  }
}

/// A mask as the kernel reads it: numbers, rows that start on eight elements, every head
/// (attention.cpp, preprocess_mask and pad_bias).
Tensor kernel_mask(const AttentionArguments& a) {
  Tensor mask = a.mask;
  if (!mask) return mask;
  if (mask.dtype() == DType::boolean) mask = additive_mask(mask, a.query.dtype());
  const std::int64_t keys = mask.size(-1);
  if (keys % 8 != 0) {
    Shape shape = mask.shape();
    shape[-1] = round_up(keys, 8);
    Runtime& runtime = mask.runtime();
    NodeRef node;
    if (runtime.grad_enabled && mask.requires_grad()) {
      node = runtime.make_node(
          "pad",
          [](Node& n, Gradients& in, Gradients& out) {
            out[0] = clone(slice(in[0], -1, 0, n.shape[-1]), true);
          },
          1);
      runtime.connect(*node.get(), 0, mask);
      node->shape = mask.shape();
    }
    mask = runtime.empty(shape, mask.dtype());
    if (node) runtime.attach(node, mask);
    mask = slice(mask, -1, 0, keys);
  }
  return expand(mask, Shape{a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)});
}

}  // namespace

Tensor efficient_attention(const AttentionArguments& arguments) {
  AttentionArguments a = arguments;
  Runtime& runtime = a.query.runtime();
  const Scoped<const char*> label(runtime.label.kind, "efficient_attention");
  a.mask = kernel_mask(a);
  NodeRef node = attention_node("efficient_attention", efficient_backward, a);
  if (node && a.mask) {
    node->save(a.mask);
  } else if (node) {
    node->skip();
  }
  if (node) node->number[0] = a.dropout > 0;
  const std::int64_t b = a.query.size(0), h = a.query.size(1), s = a.query.size(2);
  const std::int64_t width = std::max(a.query.size(3), a.value.size(3));
  Tensor out = heads_inside(runtime, b, h, s, a.value.size(3), a.query.dtype());
  const Tensor lse = node ? runtime.empty(Shape{b, h, round_up(s, 32)}, DType::f32) : Tensor();
  if (is_half(a.query.dtype()) && width > 128) {  // the output is summed in fp32 first
    runtime.scratch(4 * out.count());
  }
  if (runtime.watched()) {
    std::vector<Tensor> made{out};
    if (lse) made.push_back(lse);
    record_attention("efficient_attention", a, made);
  }
  if (node) {
    runtime.attach(node, out);
    node->save(out);
    node->save(lse);
  }
  return out;
}

}  // namespace shardfit::tensor
