#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// dX, dgamma, dbeta; sums of each channel, then coefficients of each group and channel in fp32
/// (native/cuda/group_norm_kernel.cu, GroupNormBackwardKernelImplInternal). number: groups.
void group_norm_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = contiguous(node.load(0));
  const Tensor weight = node.load(1);
  const Tensor gradient = contiguous(in[0]);
  const std::int64_t groups = node.number[0];
  const std::int64_t batch = x.size(0);
  const std::int64_t channels = x.size(1);
  std::vector<Tensor> made;
  if (node.wants(0)) made.push_back(out[0] = runtime.empty(x.shape(), x.dtype()));
  if (node.wants(1)) made.push_back(out[1] = runtime.empty(Shape{channels}, weight.dtype()));
  if (node.wants(2)) made.push_back(out[2] = runtime.empty(Shape{channels}, weight.dtype()));
  const Tensor ds = runtime.empty(Shape{batch, channels}, DType::f32);
  const Tensor db = runtime.empty(Shape{batch, channels}, DType::f32);
  if (node.wants(0)) {
    const Tensor c2 = runtime.empty(Shape{batch, groups}, DType::f32);
    const Tensor c3 = runtime.empty(Shape{batch, groups}, DType::f32);
    Tensor c1;
    if (weight) c1 = runtime.empty(Shape{batch, channels}, DType::f32);
  }
  if (runtime.watched() && !made.empty()) runtime.ran("group_norm", {gradient, x}, made);
}

/// number: dimension whose norms are taken.
void weight_norm_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor v = node.load(0);
  const Tensor g = node.load(1);
  const Tensor gradient = contiguous(in[0]);
  out[0] = runtime.empty(v.shape(), v.dtype());
  out[1] = runtime.empty(g.shape(), g.dtype());
  if (runtime.watched()) runtime.ran("weight_norm", {gradient, v, g}, {out[0], out[1]});
}

}  // namespace

Tensor group_norm(const Tensor& x_in, std::int64_t groups, const Tensor& weight_in,
                  const Tensor& bias_in) {
  const Tensor bias = cast_full(bias_in);
  const Tensor weight = cast_full(weight_in);
  const Tensor x = cast_full(x_in);
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "group_norm");
  if (x.rank() < 2 || groups < 1 || x.size(1) % groups != 0 ||
      (weight && (weight.rank() != 1 || weight.size(0) != x.size(1)))) {
    throw ShapeError("group_norm: input " + shape_text(x.shape()) + ", groups " +
                     std::to_string(groups) +
                     (weight ? ", weight " + shape_text(weight.shape()) : ""));
  }
  NodeRef node;
  if (runtime.grad_enabled &&
      (x.requires_grad() || weight.requires_grad() || bias.requires_grad())) {
    node = runtime.make_node("group_norm", group_norm_backward, 3);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, weight);
    runtime.connect(*node.get(), 2, bias);
    node->number[0] = groups;
  }
  const Tensor input = contiguous(x);
  if (node) {
    node->save(input);
    node->save(weight);
  }
  Tensor out = runtime.empty(x.shape(), x.dtype());
  const DType stats = weight ? weight.dtype() : x.dtype();
  const Tensor mean = runtime.empty(Shape{x.size(0), groups}, stats);
  const Tensor rstd = runtime.empty(Shape{x.size(0), groups}, stats);
  {  // statistics in fp32, where the saved ones are not; scale and shift of each sample's channels
    Tensor full_mean, full_rstd;
    if (stats != DType::f32) {
      full_mean = runtime.empty(Shape{x.size(0), groups}, DType::f32);
      full_rstd = runtime.empty(Shape{x.size(0), groups}, DType::f32);
    }
    const Tensor a = runtime.empty(Shape{x.size(0), x.size(1)}, DType::f32);
    const Tensor b = runtime.empty(Shape{x.size(0), x.size(1)}, DType::f32);
  }
  if (runtime.watched()) runtime.ran("group_norm", {input}, {out, mean, rstd});
  if (node) {
    runtime.attach(node, out);
    node->save(mean);
    node->save(rstd);
  }
  return out;
}

Tensor weight_norm(const Tensor& v, const Tensor& g, int dim) {
  Runtime& runtime = v.runtime();
  const Scoped<const char*> label(runtime.label.kind, "weight_norm");
  if (v.rank() < 2 || g.rank() != v.rank() || dim < 0 || dim >= v.rank() ||
      g.count() != v.size(dim)) {
    throw ShapeError("weight_norm: " + shape_text(v.shape()) + " by " + shape_text(g.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled && (v.requires_grad() || g.requires_grad())) {
    node = runtime.make_node("weight_norm", weight_norm_backward, 2);
    runtime.connect(*node.get(), 0, v);
    runtime.connect(*node.get(), 1, g);
    node->save(v);
    node->save(g);
  }
  Tensor out = runtime.empty(v.shape(), v.dtype());
  const Tensor norms = runtime.empty(g.shape(), is_half(g.dtype()) ? DType::f32 : g.dtype());
  if (runtime.watched()) runtime.ran("weight_norm", {v, g}, {out, norms});
  if (node) {
    runtime.attach(node, out);
    node->save(norms);
  }
  return out;
}

}  // namespace shardfit::tensor
