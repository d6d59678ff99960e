#include <algorithm>
#include <cmath>

#include "tensor/attention_kernels.h"
#include "tensor/autocast.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {

NodeRef attention_node(const char* kind, Backward backward, const AttentionArguments& a) {
  Runtime& runtime = a.query.runtime();
  if (!runtime.grad_enabled ||
      !(a.query.requires_grad() || a.key.requires_grad() || a.value.requires_grad())) {
    return {};
  }
  NodeRef node = runtime.make_node(kind, backward, 4);
  runtime.connect(*node.get(), 0, a.query);
  runtime.connect(*node.get(), 1, a.key);
  runtime.connect(*node.get(), 2, a.value);
  runtime.connect(*node.get(), 3, a.mask);
  node->save(a.key);
  node->save(a.query);
  node->save(a.value);
  return node;
}

void record_attention(const char* kind, const AttentionArguments& a,
                      const std::vector<Tensor>& outputs, const std::vector<Tensor>& others) {
  Runtime& runtime = a.query.runtime();
  if (!runtime.watched()) return;
  const bool backward = !others.empty();
  Compute c;
  c.groups = a.query.size(0) * a.query.size(1);
  c.m = a.query.size(2);
  c.n = a.key.size(2);
  c.k = a.query.size(3);
  const double products = backward ? 5 : 2;  // Dao et al. 2022, algorithm 4: five products
  c.flops = products * 2.0 * static_cast<double>(c.groups) * static_cast<double>(c.m) *
            static_cast<double>(c.n) * static_cast<double>(c.k) * (a.causal ? 0.5 : 1.0);
  std::vector<Tensor> inputs{a.query, a.key, a.value};
  if (a.mask) inputs.push_back(a.mask);
  inputs.insert(inputs.end(), others.begin(), others.end());
  runtime.ran(kind, inputs, outputs, c);
}

Tensor additive_mask(const Tensor& mask, DType dtype) {
  Runtime& runtime = mask.runtime();
  const Tensor lowest = runtime.empty({}, dtype);
  const Tensor zero = runtime.empty({}, dtype);
  return runtime.empty(mask.shape(), dtype);
}

namespace {

/// empty_like keeps the strides of a dense tensor.
Tensor empty_like(const Tensor& a) {
  return a.dense() ? a.runtime().empty_strided(a.shape(), a->stride, a.dtype())
                   : elementwise_empty("empty_like", {a}, a.dtype());
}

/// Zeros behind the last dimension up to a multiple (transformers/attention.cpp, pad_last_dim).
Tensor pad_last(const Tensor& a, std::int64_t multiple) {
  const std::int64_t have = a.size(-1);
  if (have % multiple == 0) return a;
  Runtime& runtime = a.runtime();
  Shape shape = a.shape();
  shape[-1] = round_up(have, multiple);
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node(
        "pad",
        [](Node& n, Gradients& in, Gradients& out) {
          out[0] = clone(slice(in[0], -1, 0, n.shape[-1]), true);
        },
        1);
    runtime.connect(*node.get(), 0, a);
    node->shape = a.shape();
  }
  Tensor out = runtime.empty(shape, a.dtype());
  runtime.launched("pad", a.dtype(),
                   2.0 * static_cast<double>(out.count() * element_size(a.dtype())));
  if (node) runtime.attach(node, out);
  return out;
}

/// Head widths as the kernels round them.
std::int64_t flash_width(std::int64_t width) { return round_up(width, width <= 128 ? 32 : 64); }

/// In how many parts the keys of a forward pass are split where batch, heads and rows do not fill
/// the device (flash_attn/flash_api.cpp, set_params_splitkv and num_splits_heuristic).
std::int64_t flash_splits(const AttentionArguments& a) {
  const std::int64_t width = a.query.size(3);
  const std::int64_t columns = width <= 64 ? 256 : (width <= 128 ? 128 : 64);
  const std::int64_t blocks = round_up(a.key.size(2), columns) / columns;
  const std::int64_t tiles =
      a.query.size(0) * a.query.size(1) * (round_up(a.query.size(2), 64) / 64);
  const std::int64_t places = 2 * a.query.runtime().device.multiprocessors;
  if (static_cast<float>(tiles) >= 0.8F * static_cast<float>(places)) return 1;
  const std::int64_t most = std::min({std::int64_t{128}, places, blocks});
  const auto each = [&](std::int64_t splits) { return (blocks + splits - 1) / splits; };
  const auto efficiency = [&](std::int64_t splits) {
    if (splits > 1 && each(splits) == each(splits - 1)) return 0.0F;  // no other than one fewer
    const float waves = static_cast<float>(tiles * splits) / static_cast<float>(places);
    return waves / std::ceil(waves);
  };
  float best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, efficiency(splits));
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    if (efficiency(splits) > 0 && efficiency(splits) >= 0.85F * best) return splits;
  }
  return 1;
}

/// dq, dk, dv, softmax_d, dq_accum and, with grouped heads, dk and dv of every query head
/// (transformers/cuda/flash_attn/flash_api.cpp, mha_bwd).
void flash_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor k = node.load(0);
  const Tensor q = node.load(1);
  const Tensor v = node.load(2);
  const Tensor lse = node.load(4);
  const Tensor result = node.load(3);
  const Tensor rng = node.load(5);
  const Tensor unused = node.load(6);
  // Rows of the gradient and of the output must be contiguous in (batch, length, heads, dim).
  const Tensor gradient = contiguous(transpose(in[0], 1, 2));
  const Tensor output = contiguous(transpose(result, 1, 2));
  const std::int64_t b = q.size(0), h = q.size(1), s = q.size(2), d = q.size(3);
  const std::int64_t d_rounded = d <= 128 ? round_up(d, 32) : (d <= 192 ? 192 : 256);
  const std::int64_t s_rounded = round_up(s, 128);
  out[0] = empty_like(q);
  out[1] = empty_like(k);
  out[2] = empty_like(v);
  const Tensor softmax_d = runtime.empty(Shape{b, h, s_rounded}, DType::f32);
  const Tensor accumulated = runtime.empty(Shape{b, s_rounded, h, d_rounded}, DType::f32);
  if (k.size(1) != h) {
    const Tensor dk = runtime.empty(Shape{b, k.size(2), h, d}, q.dtype());
    const Tensor dv = runtime.empty(Shape{b, k.size(2), h, d}, q.dtype());
    const auto element = static_cast<double>(element_size(q.dtype()));
    runtime.launched("sum", q.dtype(), 2 * element * static_cast<double>(dk.count() + k.count()),
                     2);
  }
  AttentionArguments shape;
  shape.query = q;
  shape.key = k;
  shape.value = v;
  shape.causal = node.number[0] != 0;
  if (runtime.watched()) {
    record_attention("flash_attention", shape, {out[0], out[1], out[2]}, {gradient, output, lse});
  }
}

Tensor flash(const AttentionArguments& arguments) {
  AttentionArguments a = arguments;
  Runtime& runtime = a.query.runtime();
  const Scoped<const char*> label(runtime.label.kind, "flash_attention");
  const std::int64_t dim = a.query.size(-1);
  a.query = pad_last(a.query, 8);
  a.key = pad_last(a.key, 8);
  a.value = pad_last(a.value, 8);
  NodeRef node = attention_node("flash_attention", flash_backward, a);
  std::vector<Tensor> made;
  if (runtime.mode) made = runtime.mode->before("flash_attention");
  if (made.empty()) {
    made.push_back(empty_like(a.query));
    made.push_back(
        runtime.empty(Shape{a.query.size(0), a.query.size(1), a.query.size(2)}, DType::f32));
    std::vector<Tensor> partial;  // until the kernel has run
    if (const std::int64_t splits = a.dropout > 0 ? 1 : flash_splits(a); splits > 1) {
      const std::int64_t b = a.query.size(0), h = a.query.size(1), s = a.query.size(2);
      partial.push_back(runtime.empty(Shape{splits, b, h, s}, DType::f32));
      partial.push_back(
          runtime.empty(Shape{splits, b, h, s, flash_width(a.query.size(3))}, DType::f32));
    }
    made.push_back(runtime.scratch(16));
    made.push_back(runtime.scratch(8));
    if (a.dropout > 0) made[2] = runtime.scratch(16);  // the state of the generator, anew
    if (runtime.watched()) record_attention("flash_attention", a, made);
    if (runtime.mode) runtime.mode->after("flash_attention", made);
  }
  Tensor out = std::move(made[0]);
  const Tensor lse = std::move(made[1]);
  const Tensor rng = std::move(made[2]);
  const Tensor unused = std::move(made[3]);
  if (node) {
    node->number[0] = a.causal;
    runtime.attach(node, out);
    node->save(out);
    node->save(lse);
    node->save(rng);
    node->save(unused);
  }
  return dim == out.size(-1) ? out : slice(out, -1, 0, dim);
}

/// Key and value heads repeated to the query's number (attention.cpp,
/// pre_process_group_query_attention_input).
Tensor repeat_heads(const Tensor& a, std::int64_t heads) {
  const std::int64_t times = heads / a.size(1);
  if (times == 1) return a;
  const Tensor wide =
      expand(unsqueeze(a, 2), Shape{a.size(0), a.size(1), times, a.size(2), a.size(3)});
  return reshape(clone(wide, false), Shape{a.size(0), heads, a.size(2), a.size(3)});
}

/// Softmax whose rows of nothing but -inf give zeros (SoftMax.cpp, _safe_softmax): which entries
/// are -inf, in which rows all of them, and a zero.
Tensor safe_softmax(const Tensor& a) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "softmax");
  Tensor out = softmax(a, -1, a.dtype());
  const Scoped<bool> no_grad(runtime.grad_enabled, false);
  const Tensor masked = compare_scalar("isneginf", detach(a));
  Shape rows = a.shape();
  rows[-1] = 1;
  const Tensor empty_rows = runtime.empty(rows, DType::boolean);
  const Tensor zero = runtime.empty({}, a.dtype());
  return out;
}

}  // namespace

/// Half precision is worked in fp32.
Tensor math_attention(const AttentionArguments& a) {
  Runtime& runtime = a.query.runtime();
  const Scoped<const char*> label(runtime.label.kind, "math_attention");
  const DType dtype = a.query.dtype();
  const DType inner = is_half(dtype) ? DType::f32 : dtype;
  Tensor mask = a.mask;
  if (mask && mask.dtype() == DType::boolean) mask = additive_mask(mask, dtype);
  const Tensor query = to(a.query, inner);
  Tensor key = to(a.key, inner);
  Tensor value = to(a.value, inner);
  const Tensor scaled_query = mul_scalar(query);
  if (a.causal) {
    const Shape shape{query.size(2), key.size(2)};
    mask = compare_scalar("tril", runtime.empty(shape, DType::boolean));
    mask = additive_mask(mask, inner);
  }
  if (a.grouped) {
    key = repeat_heads(key, query.size(1));
    value = repeat_heads(value, query.size(1));
  }
  Tensor scores = matmul(scaled_query, mul_scalar(transpose(key, -2, -1)));
  Tensor weights = safe_softmax(scores);
  scores.reset();
  weights = dropout(weights, a.dropout);
  // The weights are a second result, which the caller drops.
  const Tensor returned = to(weights, dtype);
  return to(matmul(weights, value), dtype);
}

namespace {

/// flash_attention of sdp_utils.cpp: half precision, no mask, heads of at most 256, equal or
/// grouped, on 8.0 and later; 8.6, 8.9 and 12.x do not train heads of 193 to 224, nor wider ones
/// with dropout.
bool takes_flash(const AttentionArguments& a, const DeviceTraits& device) {
  const std::int64_t width = a.query.size(-1);
  const bool heads_fit = a.query.size(1) == a.key.size(1) || a.grouped;
  if (!is_half(a.query.dtype()) || a.mask || width != a.value.size(-1) || width > 256 ||
      device.capability_major < 8 || !heads_fit) {
    return false;
  }
  const bool small = (device.capability_major == 8 && device.capability_minor != 0) ||
                     device.capability_major == 12;
  const bool trains = a.query.runtime().grad_enabled &&
                      (a.query.requires_grad() || a.key.requires_grad() || a.value.requires_grad());
  return !(small && trains && width > 192 && (width <= 224 || a.dropout > 0));
}

/// mem_efficient_attention of sdp_utils.cpp: equal heads, rows of 16 bytes.
bool takes_efficient(const AttentionArguments& a, const DeviceTraits& device) {
  std::int64_t alignment = is_half(a.query.dtype()) ? 8 : 4;
  if (device.capability_major < 8 && !is_half(a.query.dtype())) alignment = 1;
  return a.query.size(1) == a.key.size(1) && a.query.size(-1) % alignment == 0 &&
         a.value.size(-1) % alignment == 0;
}

}  // namespace

AttentionKernel choose_attention(const AttentionArguments& a) {
  const DeviceTraits& device = a.query.runtime().device;
  if (takes_flash(a, device)) return AttentionKernel::flash;
  if (takes_efficient(a, device)) return AttentionKernel::efficient;
  return AttentionKernel::math;
}

namespace {

void check(const AttentionArguments& a) {
  const Tensor& q = a.query;
  const Tensor& k = a.key;
  const Tensor& v = a.value;
  const bool ranks = q.rank() == 4 && k.rank() == 4 && v.rank() == 4;
  if (!ranks || q.size(0) != k.size(0) || k.size(0) != v.size(0) || q.size(-1) != k.size(-1) ||
      k.size(2) != v.size(2) || k.size(1) != v.size(1) || k.size(1) == 0 ||
      q.size(1) % k.size(1) != 0) {
    throw ShapeError("attention: query " + shape_text(q.shape()) + ", key " +
                     shape_text(k.shape()) + ", value " + shape_text(v.shape()));
  }
}

}  // namespace

Tensor attention(const AttentionArguments& arguments) {
  check(arguments);
  AttentionArguments a = arguments;
  if (a.mask) a.mask = cast_low(a.mask);
  a.value = cast_low(a.value);
  a.key = cast_low(a.key);
  a.query = cast_low(a.query);
  switch (choose_attention(a)) {
    case AttentionKernel::flash:
      return flash(a);
    case AttentionKernel::efficient:
      return efficient_attention(a);
    case AttentionKernel::math:
      return math_attention(a);
  }
  return {};
}

}  // namespace shardfit::tensor
