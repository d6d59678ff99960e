#include "tensor/autocast.h"
#include "tensor/layout.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

std::int64_t output_length(std::int64_t length, std::int64_t kernel, const Convolution& c) {
  return (length + 2 * c.padding - c.dilation * (kernel - 1) - 1) / c.stride + 1;
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

bool format_of(const Tensor& x, const Tensor& weight) {
  return suggests_channels_last(x) || suggests_channels_last(weight);
}

/// One of the two gradients; the kernel's own copies of what is not laid out as it reads go with it
/// (cudnn/ConvShared.cpp, cudnn_convolution_backward_input and _weight). What cuDNN takes as
/// workspace is not known and not counted.
Tensor input_gradient(const Tensor& gradient, const Tensor& x, const Tensor& weight, bool last) {
  Tensor out = empty_in(x.runtime(), x.shape(), x.dtype(), last);
  const Tensor dense = contiguous_in(gradient, last);
  const Tensor filter = contiguous_in(weight, last);
  record(dense, filter, {dense, filter}, out);
  return out;
}

Tensor weight_gradient(const Tensor& gradient, const Tensor& x, const Tensor& weight, bool last) {
  const Tensor dense = contiguous_in(gradient, last);
  const Tensor input = contiguous_in(x, last);
  Tensor out = empty_in(x.runtime(), weight.shape(), weight.dtype(), last);
  record(dense, weight, {dense, input}, out);
  return out;
}

/// One channel a group goes to a kernel of PyTorch's own, which makes the weight's gradient first
/// (Convolution.cpp, use_cudnn_depthwise; cuda/DepthwiseConv2d.cu, conv_depthwise2d_backward_cuda).
bool own_depthwise(const Tensor& x, const Tensor& weight, std::int64_t groups, bool last) {
  return groups > 1 && groups == x.size(1) && weight.size(0) % groups == 0 && !last &&
         x.dtype() != DType::f16;
}

/// The gradients of input, weight and bias, the last one a sum (native/Convolution.cpp,
/// convolution_backward). A signal is made one run of memory first; a gradient of the other format
/// is copied once, before both.
void convolution_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor weight = node.load(1);
  const bool signal = weight.rank() == 3;
  const Tensor x = signal ? contiguous(node.load(0)) : node.load(0);
  const bool last = !signal && format_of(x, weight);
  if (own_depthwise(x, weight, node.number[0], last)) {
    const Tensor gradient = contiguous(in[0]);
    if (node.wants(1)) out[1] = weight_gradient(gradient, x, weight, false);
    if (node.wants(0)) out[0] = input_gradient(gradient, x, weight, false);
  } else {
    const bool in_last =
        signal ? signal_suggests_channels_last(in[0]) : suggests_channels_last(in[0]);
    const bool wanted = !signal && suggests_channels_last(x);
    const Tensor gradient = in_last != wanted ? contiguous_in(in[0], wanted) : in[0];
    if (node.wants(0)) out[0] = input_gradient(gradient, x, weight, last);
    if (node.wants(1)) out[1] = weight_gradient(gradient, x, weight, last);
  }
  if (node.wants(2)) {
    const std::uint32_t places = signal ? 0b101 : 0b1101;
    out[2] = sum_dims(in[0], places, false);
  }
}

/// Rows of a signal: channels of one sample, then its length. All work on pictures of height 1.
Tensor convolve(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in,
                const Convolution& c, int rank) {
  const Tensor bias = cast_low(bias_in);
  const Tensor weight = cast_low(weight_in);
  const Tensor x = cast_low(x_in);
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "convolution");
  const bool fits = x.rank() == rank && weight.rank() == rank && c.groups > 0 &&
                    x.size(1) == weight.size(1) * c.groups && weight.size(0) % c.groups == 0;
  bool covers = c.stride >= 1 && c.dilation >= 1 && c.padding >= 0 && weight.count() > 0;
  for (int i = 2; fits && covers && i < rank; ++i) {
    covers =
        weight.size(i) > 0 && x.size(i) + 2 * c.padding >= c.dilation * (weight.size(i) - 1) + 1;
  }
  if (!fits || !covers || (bias && (bias.rank() != 1 || bias.size(0) != weight.size(0)))) {
    throw ShapeError("convolution: input " + shape_text(x.shape()) + ", weight " +
                     shape_text(weight.shape()) + ", groups " + std::to_string(c.groups) +
                     ", padding " + std::to_string(c.padding) +
                     (bias ? ", bias " + shape_text(bias.shape()) : ""));
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
    node->number[0] = c.groups;
  }
  const bool last = rank == 4 && format_of(x, weight);
  const Tensor run = rank == 3 ? contiguous(detach(x)) : detach(x);  // of memory, for a signal
  Shape shape{x.size(0), weight.size(0)};
  for (int i = 2; i < rank; ++i) shape.push_back(output_length(x.size(i), weight.size(i), c));
  const Tensor input = contiguous_in(run, last);  // Convolution.cpp, _convolution
  Tensor out = empty_in(runtime, shape, x.dtype(), last);
  const Tensor filter = contiguous_in(detach(weight), last);  // cudnn/ConvShared.cpp
  record(out, weight, {input, filter}, out);
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution& convolution) {
  return convolve(x, weight, bias, convolution, 4);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution& convolution) {
  return convolve(x, weight, bias, convolution, 3);
}

}  // namespace shardfit::tensor
