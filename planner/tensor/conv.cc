#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

std::int64_t output_length(std::int64_t length, std::int64_t kernel, const Convolution& c) {
  return (length + 2 * c.padding - kernel) / c.stride + 1;
}

/// Says that a kernel ran over the places of `out`, which the forward makes.
void record(const Tensor& out, const Tensor& weight, const std::vector<Tensor>& inputs,
            const Tensor& made) {
  Runtime& runtime = out.runtime();
  if (!runtime.watched()) return;
  Compute c;
  c.m = out.count() / out.size(1);
  c.n = out.size(1);
  c.k = weight.count() / weight.size(0);
  c.flops = 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
  runtime.ran("convolution", inputs, {made}, c);
}

/// The gradients of input, weight and bias, the last one a sum (cudnn/ConvShared.cpp,
/// cudnn_convolution_backward; native/Convolution.cpp, convolution_backward). What cuDNN takes as
/// workspace is not known and not counted.
void convolution_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = node.load(0);
  const Tensor weight = node.load(1);
  {
    const Tensor gradient = contiguous(in[0]);
    if (node.wants(0)) {
      out[0] = runtime.empty(x.shape(), x.dtype());
      record(gradient, weight, {gradient, weight}, out[0]);
    }
    if (node.wants(1)) {
      out[1] = runtime.empty(weight.shape(), weight.dtype());
      record(gradient, weight, {gradient, x}, out[1]);
    }
  }
  if (node.wants(2)) out[2] = sum_dims(in[0], 0b1101, false);
}

}  // namespace

Tensor conv2d(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in,
              const Convolution& convolution) {
  const Tensor bias = cast_low(bias_in);
  const Tensor weight = cast_low(weight_in);
  const Tensor x = cast_low(x_in);
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "convolution");
  if (x.rank() != 4 || weight.rank() != 4 || x.size(1) != weight.size(1) * convolution.groups ||
      convolution.stride < 1) {
    throw ShapeError("conv2d: input " + shape_text(x.shape()) + ", weight " +
                     shape_text(weight.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled &&
      (x.requires_grad() || weight.requires_grad() || bias.requires_grad())) {
    node = runtime.make_node("convolution", convolution_backward, 3);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, weight);
    runtime.connect(*node.get(), 2, bias);
    node->save(x);
    node->save(weight);
  }
  const Tensor input = contiguous(detach(x));
  Tensor out = runtime.empty(
      Shape{x.size(0), weight.size(0), output_length(x.size(2), weight.size(2), convolution),
            output_length(x.size(3), weight.size(3), convolution)},
      x.dtype());
  record(out, weight, {input, weight}, out);
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
