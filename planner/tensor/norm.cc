#include <algorithm>

#include "tensor/autocast.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// Many short rows: dgamma and dbeta come as partial sums of 32 rows each, which are summed into
/// tensors that take the place of the first ones (cuda/layer_norm_kernel.cu,
/// LaunchGammaBetaBackwardCUDAKernel).
void sum_in_parts(Runtime& runtime, std::int64_t rows, std::int64_t n, Tensor& gamma,
                  Tensor& beta) {
  constexpr std::int64_t rows_of_block = 32;
  constexpr std::int64_t most_blocks = 32 * 1024;
  if (rows <= 64 * 1024 || n / 32 >= runtime.device.multiprocessors / 2) return;
  const std::int64_t blocks = std::min((rows + rows_of_block - 1) / rows_of_block, most_blocks);
  Tensor gamma_parts, beta_parts;
  if (gamma) gamma_parts = runtime.empty(Shape{blocks, n}, gamma.dtype());
  if (beta) beta_parts = runtime.empty(Shape{blocks, n}, beta.dtype());
  if (gamma) gamma = sum_dims(gamma_parts, 1, false);
  if (beta) beta = sum_dims(beta_parts, 1, false);
}

/// dX, dgamma, dbeta (cuda/layer_norm_kernel.cu, layer_norm_backward_cuda).
void layer_norm_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = node.load(0);
  const Tensor input = contiguous(x);
  if (node.wants(0)) out[0] = runtime.empty(x.shape(), x.dtype());
  const std::int64_t n = x.size(-1);
  if (node.wants(1)) out[1] = runtime.empty(Shape{n}, node.dtype);
  if (node.wants(2)) out[2] = runtime.empty(Shape{n}, node.dtype);
  const Tensor gradient = contiguous(in[0]);
  sum_in_parts(runtime, x.count() / n, n, out[1], out[2]);
  if (runtime.watched()) {
    std::vector<Tensor> made;
    for (const Tensor& one : out) {
      if (one) made.push_back(one);
    }
    if (!made.empty()) runtime.ran("layer_norm", {gradient, x}, made);
  }
}

/// dX and dgamma of _fused_rms_norm_backward (cuda/layer_norm_kernel.cu).
void rms_norm_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = node.load(0);
  const Tensor rstd = node.load(1);
  const Tensor input = contiguous(x);
  const Tensor gradient = contiguous(in[0]);
  if (node.wants(0)) out[0] = runtime.empty(x.shape(), x.dtype());
  if (node.wants(1)) out[1] = runtime.empty(Shape{x.size(-1)}, node.dtype);
  Tensor none;
  sum_in_parts(runtime, x.count() / x.size(-1), x.size(-1), out[1], none);
  std::vector<Tensor> made;
  for (const Tensor& one : out) {
    if (one) made.push_back(one);
  }
  if (runtime.watched() && !made.empty()) runtime.ran("rms_norm", {gradient, x, rstd}, made);
}

void log_softmax_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  out[0] = node.runtime->empty(result.shape(), node.dtype);
  const Tensor gradient = contiguous(in[0]);
  if (node.runtime->watched()) node.runtime->ran(node.kind, {gradient, result}, {out[0]});
}

/// Softmax multiplies the gradient by its result first (cuda/SoftMax.cu,
/// softmax_backward_cuda_out).
void softmax_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor result = node.load(0);
  out[0] = node.runtime->empty(result.shape(), node.dtype);
  const Tensor product = mul(in[0], result);
  if (node.runtime->watched()) node.runtime->ran(node.kind, {product, result}, {out[0]});
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
  Tensor out = runtime.empty(x.shape(), dtype);
  const Tensor input = contiguous(detach(x));
  if (runtime.watched()) runtime.ran(kind, {input}, {out});
  if (node) {
    runtime.attach(node, out);
    node->save(out);
  }
  return out;
}

}  // namespace

Tensor layer_norm(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in) {
  for (const Tensor& parameter : {weight_in, bias_in}) {
    if (parameter &&
        (x_in.rank() < 1 || parameter.rank() != 1 || parameter.size(0) != x_in.size(-1))) {
      throw ShapeError("layer_norm: input " + shape_text(x_in.shape()) + ", weight or bias " +
                       shape_text(parameter.shape()));
    }
  }
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
  const std::int64_t rows = rows_of("layer_norm", x);
  const Tensor mean = runtime.empty(Shape{rows}, DType::f32);
  const Tensor rstd = runtime.empty(Shape{rows}, DType::f32);
  if (runtime.watched()) {
    std::vector<Tensor> read{input};
    for (const Tensor& parameter : {weight, bias}) {
      if (parameter) read.push_back(parameter);
    }
    runtime.ran("layer_norm", read, {out, mean, rstd});
  }
  if (node) {
    runtime.attach(node, out);
    node->save(mean);
    node->save(rstd);
    node->save(weight);
    node->save(bias);  // of derivatives.yaml, native_layer_norm
  }
  return out;
}

Tensor rms_norm(const Tensor& x_in, const Tensor& weight_in) {
  Runtime& runtime = x_in.runtime();
  const Scoped<const char*> label(runtime.label.kind, "rms_norm");
  if (weight_in.rank() != 1 || x_in.rank() < 1 || x_in.size(-1) != weight_in.size(0)) {
    throw ShapeError("rms_norm: input " + shape_text(x_in.shape()) + ", weight " +
                     shape_text(weight_in.shape()));
  }
  const Tensor weight = cast_full(weight_in);
  const Tensor x = cast_full(x_in);
  NodeRef node;
  if (runtime.grad_enabled && (x.requires_grad() || weight.requires_grad())) {
    node = runtime.make_node("rms_norm", rms_norm_backward, 2);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, weight);
    node->save(x);
    node->dtype = weight.dtype();
  }
  const Tensor input = contiguous(detach(x));
  Tensor out = runtime.empty(x.shape(), x.dtype());
  Shape rows = x.shape();
  rows[-1] = 1;
  const Tensor rstd = runtime.empty(rows, DType::f32);
  if (runtime.watched()) runtime.ran("rms_norm", {input, weight}, {out, rstd});
  if (node) {
    runtime.attach(node, out);
    node->save(rstd);
    node->save(weight);
  }
  return out;
}

namespace {

void check_dim(const char* kind, const Tensor& a, int dim) {
  if (dim < -a.rank() || dim >= a.rank()) {
    throw ShapeError(std::string(kind) + ": no dimension " + std::to_string(dim) + " of " +
                     shape_text(a.shape()));
  }
}

}  // namespace

Tensor softmax(const Tensor& a, int dim, DType dtype) {
  check_dim("softmax", a, dim);
  return softmax_of("softmax", a, dtype, softmax_backward);
}

Tensor log_softmax(const Tensor& a, int dim, DType dtype) {
  check_dim("log_softmax", a, dim);
  return softmax_of("log_softmax", a, dtype, log_softmax_backward);
}

}  // namespace shardfit::tensor
