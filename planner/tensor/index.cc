#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// Up to 3072 indices are added by one kernel; more are sorted first
/// (cuda/Embedding.cu, embedding_dense_backward_cuda).
void embedding_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor indices = node.load(0);
  const std::int64_t n = indices.count();
  if (n <= 3072) {
    out[0] = runtime.empty(node.shape, in[0].dtype());
    return;
  }
  const Tensor gradient = contiguous(in[0]);
  const Tensor sorted = runtime.empty(Shape{n}, DType::i64);
  const Tensor original = runtime.empty(Shape{n}, DType::i64);
  out[0] = runtime.empty(node.shape, in[0].dtype());
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  Runtime& runtime = weight.runtime();
  const Scoped<const char*> label(runtime.label.kind, "embedding");
  NodeRef node;
  if (runtime.grad_enabled && weight.requires_grad()) {
    node = runtime.make_node("embedding", embedding_backward, 1);
    runtime.connect(*node.get(), 0, weight);
    node->save(indices);
    node->shape = weight.shape();
  }
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  Tensor out = runtime.empty(shape, weight.dtype());
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
