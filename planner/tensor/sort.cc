#include "tensor/cub.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// The gradients go where the values came from, into zeros (derivatives.yaml, topk).
void select_backward(Node& node, Gradients& in, Gradients& out) {
  if (!in[0]) return;
  out[0] = node.runtime->empty(node.shape, in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("topk", {in[0]}, {out[0]});
}

}  // namespace

std::pair<Tensor, Tensor> topk(const Tensor& a, std::int64_t count) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "topk");
  // Longer slices take several kernels and counters between them (cuda/TensorTopK.cu,
  // should_use_sort).
  if (a.rank() < 1 || count > a.size(-1) || a.size(-1) > 1024) {
    throw ShapeError("topk: " + std::to_string(count) + " of " + shape_text(a.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("topk", select_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->shape = a.shape();
  }
  Shape shape = a.shape();
  shape[-1] = count;
  Tensor values = runtime.empty(shape, a.dtype());
  Tensor indices = runtime.empty(shape, DType::i64);
  if (runtime.watched()) runtime.ran("topk", {a}, {values, indices});
  if (node) {
    runtime.attach(node, values);
    node->save(indices);
  }
  return {values, indices};
}

std::pair<Tensor, Tensor> sort(const Tensor& a) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "sort");
  if (a.rank() != 1 || a.requires_grad()) {
    throw ShapeError("sort: one dimension without a gradient, not " + shape_text(a.shape()));
  }
  Tensor values = runtime.empty(a.shape(), a.dtype());
  Tensor indices = runtime.empty(a.shape(), DType::i64);
  const Tensor range = runtime.empty(a.shape(), DType::i64);
  // Up to 4096 elements are sorted in place by one block (cuda/Sort.cpp, should_use_small_sort).
  if (a.count() > 4096) {
    const int bits = static_cast<int>(8 * element_size(a.dtype()));
    runtime.scratch(radix_sort_scratch(runtime.device, a.count(), bits));
  }
  if (runtime.watched()) runtime.ran("sort", {a}, {values, indices});
  return {values, indices};
}

}  // namespace shardfit::tensor
