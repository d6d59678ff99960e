#include <algorithm>

#include "tensor/layout.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

std::int64_t power_below(std::int64_t n) {
  std::int64_t p = 1;
  while (p * 2 <= n) p *= 2;
  return p;
}

/// Blocks of the kernels that sum over places with the channels innermost
/// (native/cuda/Normalization.cuh, flexible_launch_configs).
struct Launch {
  std::int64_t across = 1;  // blocks over the channels
  std::int64_t along = 1;   // blocks over the places; more than one need a staging buffer
};
Launch launch_of(std::int64_t places, std::int64_t channels) {
  constexpr std::int64_t threads = 512;
  constexpr std::int64_t each = 16;
  std::int64_t x = std::min<std::int64_t>(power_below(channels), 32);
  const std::int64_t y = std::min(power_below((places + each - 1) / each), threads / x);
  if (x * y != threads) x = std::min(power_below(channels), threads / y);
  Launch launch;
  launch.across = (channels + x - 1) / x;
  launch.along = std::min<std::int64_t>((places + y * each - 1) / (y * each), 128);
  if (launch.along < 8) launch.along = 1;
  return launch;
}

/// Partial sums of each channel, `sums` of them, and counters of the blocks that are done.
void stage(Runtime& runtime, const Tensor& x, int sums) {
  const std::int64_t channels = x.size(1);
  const Launch launch = launch_of(x.count() / channels, channels);
  if (launch.along == 1) return;
  const Tensor staging = runtime.empty(Shape{sums * channels * launch.along}, DType::f32);
  const Tensor semaphores = runtime.empty(Shape{launch.across}, DType::i32);
}

/// cuDNN takes what is not bf16 (native/Normalization.cpp, _select_batch_norm_backend).
bool by_cudnn(const Tensor& x, const Tensor& weight) {
  if (x.dtype() == DType::bf16 || weight.dtype() == DType::bf16 || x.rank() < 3) return false;
  return x.dtype() != DType::f16 || weight.dtype() == DType::f32;
}

/// Kernels for channels that lie together (native/cuda/Normalization.cuh,
/// batch_norm_use_channels_last_kernels).
bool channels_together(const Tensor& x) {
  return is_channels_last(x) || (x.contiguous() && x->stride[1] == 1);
}

/// Places as one dimension: a copy where the strides do not allow it.
Tensor places_merged(const Tensor& x) {
  return reshape(detach(x), Shape{x.size(0), x.size(1), -1});
}

/// Of PyTorch's own kernels, in training, with the channels together or without a gradient of the
/// input: the sums of all places first, then the elements (cuda/Normalization.cu,
/// batch_norm_backward_cuda).
void sums_then_elements(const Node& node, const Tensor& gradient, const Tensor& x, DType dtype,
                        Gradients& out) {
  Runtime& runtime = x.runtime();
  const Shape channels{x.size(1)};
  Tensor sum, product;
  {
    const bool together = channels_together(gradient) && channels_together(x);
    const Tensor input = together ? x : places_merged(x);
    const Tensor merged = together ? gradient : places_merged(gradient);
    if (node.wants(0)) {
      sum = runtime.empty(channels, DType::f32);
      product = runtime.empty(channels, DType::f32);
    }
    out[1] = runtime.empty(channels, dtype);
    out[2] = runtime.empty(channels, dtype);
    if (together) stage(runtime, x, 2);
  }
  if (node.wants(0)) out[0] = empty_in(runtime, x.shape(), x.dtype(), is_channels_last(x));
}

/// number: training, by cuDNN.
void batch_norm_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = node.load(0);
  const DType dtype = node.load(1).dtype();
  const bool cudnn = node.number[1] != 0;
  const Shape channels{x.size(1)};
  if (!cudnn && node.number[0] != 0 && (channels_together(x) || !node.wants(0))) {
    sums_then_elements(node, in[0], x, dtype, out);
  } else {
    const bool last = cudnn && suggests_channels_last(x);
    const Tensor input = cudnn ? x : places_merged(x);
    const Tensor gradient = cudnn ? contiguous_in(in[0], last) : places_merged(in[0]);
    out[0] = empty_in(runtime, x.shape(), x.dtype(), last);
    out[1] = runtime.empty(channels, dtype);
    out[2] = runtime.empty(channels, dtype);
  }
  if (runtime.watched()) {
    std::vector<Tensor> made{out[1], out[2]};
    if (out[0]) made.insert(made.begin(), out[0]);
    runtime.ran("batch_norm", {in[0], x}, made);
  }
  for (int i = 0; i < 3; ++i) {
    if (!node.wants(i)) out[static_cast<std::size_t>(i)].reset();
  }
}

}  // namespace

Tensor batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, bool training) {
  Runtime& runtime = input.runtime();
  const Scoped<const char*> label(runtime.label.kind, "batch_norm");
  if (input.rank() < 2 || weight.rank() != 1 || weight.size(0) != input.size(1) ||
      !(weight.shape() == bias.shape())) {
    throw ShapeError("batch_norm: input " + shape_text(input.shape()) + ", weight " +
                     shape_text(weight.shape()) + ", bias " + shape_text(bias.shape()));
  }
  // cuDNN's is given a copy where the input is in neither format, and that is what is kept
  // (native/Normalization.cpp, _batch_norm_impl_index).
  const bool cudnn = by_cudnn(input, weight);
  const bool last = suggests_channels_last(input);
  const Tensor x = cudnn ? contiguous_in(input, last) : input;
  NodeRef node;
  if (runtime.grad_enabled &&
      (x.requires_grad() || weight.requires_grad() || bias.requires_grad())) {
    node = runtime.make_node("batch_norm", batch_norm_backward, 3);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, weight);
    runtime.connect(*node.get(), 2, bias);
    node->save(x);
    node->save(weight);
    node->number = {training, cudnn, 0, 0};
  }
  Tensor out = x.dense() ? runtime.empty_strided(x.shape(), x->stride, x.dtype())
                         : empty_in(runtime, x.shape(), x.dtype(), last);
  std::vector<Tensor> made{out};
  if (training) {
    const Shape channels{x.size(1)};
    made.push_back(runtime.empty(channels, DType::f32));
    made.push_back(runtime.empty(channels, DType::f32));
    if (!cudnn && channels_together(x)) {
      stage(runtime, x, 4);
    } else if (!cudnn && !x.contiguous() && is_half(x.dtype())) {
      runtime.empty(x.shape(), DType::f32);  // var_mean's input (cuda/Normalization.cu)
    }
  }
  if (runtime.watched()) runtime.ran("batch_norm", {x, weight, bias}, made);
  if (node) {
    runtime.attach(node, out);
    if (training) {
      node->save(made[1]);
      node->save(made[2]);
    }
  }
  return out;
}

}  // namespace shardfit::tensor
