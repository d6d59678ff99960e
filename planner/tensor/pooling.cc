#include "tensor/autocast.h"
#include "tensor/layout.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

void check(const char* kind, const Tensor& x, const Window& w) {
  const bool fits = x.rank() == 4 && w.size >= 1 && w.stride >= 1 && w.padding >= 0 &&
                    w.padding * 2 <= w.size && x.size(2) + 2 * w.padding >= w.size &&
                    x.size(3) + 2 * w.padding >= w.size;
  if (fits) return;
  throw ShapeError(std::string(kind) + ": input " + shape_text(x.shape()) + ", window " +
                   std::to_string(w.size) + ", padding " + std::to_string(w.padding));
}

/// Places a window visits; with `ceiling` one that begins inside and ends beyond counts too
/// (native/Pool.h, pooling_output_shape).
std::int64_t places(std::int64_t length, const Window& w) {
  const std::int64_t room = length + 2 * w.padding - w.size;
  std::int64_t n = (room + (w.ceiling ? w.stride - 1 : 0)) / w.stride + 1;
  if (w.ceiling && (n - 1) * w.stride >= length + w.padding) --n;
  return n;
}

Shape pooled(const Tensor& x, const Window& w) {
  return {x.size(0), x.size(1), places(x.size(2), w), places(x.size(3), w)};
}

NodeRef pool_node(const char* kind, const Tensor& x, Backward backward) {
  Runtime& runtime = x.runtime();
  if (!runtime.grad_enabled || !x.requires_grad()) return {};
  NodeRef node = runtime.make_node(kind, backward, 1);
  runtime.connect(*node.get(), 0, x);
  node->save(x);
  return node;
}

/// A gradient of the input's shape, in its format; the kernel reads the input and the outputs'
/// gradient in that format (cuda/DilatedMaxPool2d.cu, AveragePool2d.cu).
void pool_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor x = node.load(0);
  const bool last = suggests_channels_last(x);
  out[0] = empty_in(*node.runtime, x.shape(), x.dtype(), last);
  const Tensor input = contiguous_in(x, last);
  const Tensor gradient = contiguous_in(in[0], last);
  if (node.runtime->watched()) node.runtime->ran(node.kind, {gradient}, {out[0]});
}

/// The same, for which any strides will do where the channels lie together
/// (cuda/AdaptiveAveragePooling.cu).
void adaptive_pool_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor x = node.load(0);
  const bool last = suggests_channels_last(x);
  out[0] = empty_in(*node.runtime, x.shape(), x.dtype(), last);
  const Tensor gradient = last ? in[0] : contiguous(in[0]);
  if (node.runtime->watched()) node.runtime->ran(node.kind, {gradient}, {out[0]});
}

/// The average of everything is a mean, whose result is given the strides of the format
/// (AdaptiveAveragePooling.cpp, adaptive_avg_pool2d_symint): a node that copies the gradient.
void restride_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = node.runtime->empty(in[0].shape(), in[0].dtype());
}

Tensor restrided(const Tensor& mean) {
  Runtime& runtime = mean.runtime();
  Tensor out = runtime.alias_of(mean, mean.shape(), channels_last_strides(mean.shape()));
  if (runtime.grad_enabled && mean.requires_grad()) {
    NodeRef node = runtime.make_node("adaptive_avg_pool", restride_backward, 1);
    runtime.connect(*node.get(), 0, mean);
    runtime.attach(node, out);
  }
  return out;
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Window& window) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "max_pool");
  check("max_pool", x, window);
  NodeRef node = pool_node("max_pool", x, pool_backward);
  const bool last = suggests_channels_last(x);
  Tensor out = empty_in(runtime, pooled(x, window), x.dtype(), last);
  const Tensor indices = empty_in(runtime, out.shape(), DType::i64, last);
  const Tensor input = contiguous_in(detach(x), last);
  if (runtime.watched()) runtime.ran("max_pool", {input}, {out, indices});
  if (node) {
    runtime.attach(node, out);
    node->save(indices);
  }
  return out;
}

Tensor avg_pool2d(const Tensor& x, const Window& window) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "avg_pool");
  check("avg_pool", x, window);
  NodeRef node = pool_node("avg_pool", x, pool_backward);
  const bool last = suggests_channels_last(x);
  Tensor out = empty_in(runtime, pooled(x, window), x.dtype(), last);
  const Tensor input = contiguous_in(detach(x), last);
  if (runtime.watched()) runtime.ran("avg_pool", {input}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t size) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "adaptive_avg_pool");
  if (x.rank() != 4 || size < 1) {
    throw ShapeError("adaptive_avg_pool: input " + shape_text(x.shape()) + ", output " +
                     std::to_string(size));
  }
  const bool last = suggests_channels_last(x);
  if (size == 1) {
    Tensor out = mean_dims(x, 0b1100, true);
    return last ? restrided(out) : out;
  }
  NodeRef node = pool_node("adaptive_avg_pool", x, adaptive_pool_backward);
  const Tensor input = contiguous_in(detach(x), last);
  Tensor out = empty_in(runtime, Shape{x.size(0), x.size(1), size, size}, x.dtype(), last);
  if (runtime.watched()) runtime.ran("adaptive_avg_pool", {input}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
