#include <algorithm>

#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// dX, dgamma, dbeta (cuda/layer_norm_kernel.cu, layer_norm_backward_cuda).
void layer_norm_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = node.load(0);
  const Tensor gradient = contiguous(in[0]);
  const Tensor input = contiguous(x);
  if (node.wants(0)) out[0] = runtime.empty(x.shape(), x.dtype());
  const std::int64_t n = x.size(-1);
  if (node.wants(1)) out[1] = runtime.empty(Shape{n}, node.dtype);
  if (node.wants(2)) out[2] = runtime.empty(Shape{n}, node.dtype);
}

void log_softmax_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  const Tensor gradient = contiguous(in[0]);
  out[0] = node.runtime->empty(result.shape(), node.dtype);
}

/// Softmax multiplies the gradient by its result first (cuda/SoftMax.cu,
/// softmax_backward_cuda_out).
void softmax_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  out[0] = node.runtime->empty(result.shape(), node.dtype);
  const Tensor product = mul(in[0], result);
}

Tensor softmax_of(const char* kind, const Tensor& a, DType dtype, Backward backward) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, kind);
  // An fp16 input with an fp32 result is converted inside the kernel (SoftMax.cpp, softmax).
  const Tensor x = a.dtype() == DType::f16 && dtype == DType::f32 ? a : to(a, dtype);
  NodeRef node;
  if (runtime.grad_enabled && x.requires_grad()) {
    node = runtime.make_node(kind, backward, 1);
    runtime.connect(*node.get(), 0, x);
    node->dtype = x.dtype();
  }
  const Tensor input = contiguous(detach(x));
  Tensor out = runtime.empty(x.shape(), dtype);
  if (node) {
    runtime.attach(node, out);
    node->save(out);
  }
  return out;
}

}  // namespace

Tensor layer_norm(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in) {
  const Tensor bias = cast_full(bias_in);
  const Tensor weight = cast_full(weight_in);
  const Tensor x = cast_full(x_in);
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "layer_norm");
  NodeRef node;
  if (runtime.grad_enabled &&
      (x.requires_grad() || weight.requires_grad() || bias.requires_grad())) {
    node = runtime.make_node("layer_norm", layer_norm_backward, 3);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, weight);
    runtime.connect(*node.get(), 2, bias);
    node->save(x);
    if (weight) node->dtype = weight.dtype();
  }
  const Tensor input = contiguous(detach(x));
  Tensor out = runtime.empty(x.shape(), x.dtype());
  const std::int64_t rows = x.count() / x.size(-1);
  const Tensor mean = runtime.empty(Shape{rows}, DType::f32);
  const Tensor rstd = runtime.empty(Shape{rows}, DType::f32);
  if (node) {
    runtime.attach(node, out);
    node->save(mean);
    node->save(rstd);
    node->save(weight);
  }
  return out;
}

Tensor softmax(const Tensor& a, int, DType dtype) {
  return softmax_of("softmax", a, dtype, softmax_backward);
}

Tensor log_softmax(const Tensor& a, int, DType dtype) {
  return softmax_of("log_softmax", a, dtype, log_softmax_backward);
}

}  // namespace shardfit::tensor
