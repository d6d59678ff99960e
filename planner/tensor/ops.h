#pragma once
// PyTorch's operators on tensors without values: each allocates what the CUDA kernel's host code
// allocates, in that order, saves what autograd saves (tools/autograd/derivatives.yaml) and
// installs the backward that does the same. Files: elementwise.cc, views.cc, reduce.cc, matmul.cc,
// norm.cc, attention.cc, conv.cc, loss.cc, index.cc. Shapes are checked: a ShapeError names the
// operator and both shapes.

#include <stdexcept>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace shardfit::tensor {

/// Operands of an operator do not go together.
struct ShapeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
std::string shape_text(const Shape& shape);

// ---- elementwise (aten/src/ATen/native/BinaryOps.cpp, UnaryOps.cpp, TensorIterator.cpp)
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
/// a /= b: the result in a's memory. What the backward needs of the old values is a copy.
Tensor div_in_place(const Tensor& a, const Tensor& b);
/// a // number, for whole numbers.
Tensor floor_divide(const Tensor& a);
Tensor add_scalar(const Tensor& a);
Tensor mul_scalar(const Tensor& a);
Tensor div_scalar(const Tensor& a);
/// a += b and a /= number: the same tensor, with a node of its own.
void add_in_place(const Tensor& a, const Tensor& b);
void div_in_place(const Tensor& a);
/// An activation in place: its result (relu) or a copy of its input (silu) is kept.
void relu_in_place(const Tensor& a);
void silu_in_place(const Tensor& a);
/// base ** exponent of two tensors; no gradient.
Tensor pow_tensor(const Tensor& base, const Tensor& exponent);
/// a ** exponent.
Tensor pow_scalar(const Tensor& a, double exponent);
/// number ** a: the number becomes a tensor of eight bytes for a moment (Pow.cpp). No gradient.
Tensor exponential(const Tensor& a);
Tensor reciprocal(const Tensor& a);
Tensor neg(const Tensor& a);
Tensor rsqrt(const Tensor& a);
Tensor sqrt(const Tensor& a);
Tensor exp(const Tensor& a);
Tensor log(const Tensor& a);
Tensor abs(const Tensor& a);
Tensor tanh(const Tensor& a);
Tensor sigmoid(const Tensor& a);
Tensor relu(const Tensor& a);
Tensor silu(const Tensor& a);
Tensor softplus(const Tensor& a);
Tensor gelu(const Tensor& a);
/// modeling_bloom.py, BloomGelu.
Tensor bloom_gelu(const Tensor& x);
Tensor cos(const Tensor& a);
Tensor sin(const Tensor& a);
/// The smaller of two tensors' elements; no gradient.
Tensor minimum(const Tensor& a, const Tensor& b);
/// A comparison or logical operator of two tensors (or one and a number): bool, no gradient.
Tensor compare(const char* kind, const Tensor& a, const Tensor& b);
Tensor compare_scalar(const char* kind, const Tensor& a);
/// condition ? a : b; a or b may be empty (a number).
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor masked_fill(const Tensor& a, const Tensor& mask);
/// a[mask] = number in a's own memory; what is given back carries the new history.
Tensor masked_fill_in_place(const Tensor& a, const Tensor& mask);
Tensor clamp(const Tensor& a);
/// The tensor in another dtype; itself where it has it already.
Tensor to(const Tensor& a, DType dtype);
/// A copy in the same dtype, contiguous or with the strides kept.
Tensor clone(const Tensor& a, bool keep_strides);
/// Dropout in training: the mask is one byte an element; nothing happens at p = 0.
Tensor dropout(const Tensor& a, double p);
Tensor zeros_like(const Tensor& a);
Tensor detach(const Tensor& a);

// ---- views (aten/src/ATen/native/TensorShape.cpp)
Tensor view(const Tensor& a, const Shape& shape);
Tensor reshape(const Tensor& a, const Shape& shape);
Tensor unsafe_view(const Tensor& a, const Shape& shape);
Tensor transpose(const Tensor& a, int dim0, int dim1);
Tensor permute(const Tensor& a, const std::vector<int>& order);
Tensor unsqueeze(const Tensor& a, int dim);
Tensor squeeze(const Tensor& a, int dim);
/// Sizes of -1 keep the size.
Tensor expand(const Tensor& a, const Shape& shape);
/// a[..., start:end:step] in one dimension.
Tensor slice(const Tensor& a, int dim, std::int64_t start, std::int64_t end, std::int64_t step = 1);
Tensor select(const Tensor& a, int dim, std::int64_t index);
/// The same tensor as a view of its own: what an index over everything gives (a[..., :n]).
Tensor alias(const Tensor& a);
std::vector<Tensor> split(const Tensor& a, const std::vector<std::int64_t>& sizes, int dim);
Tensor contiguous(const Tensor& a);
/// `times` copies one behind the other in the first dimension (Tensor.repeat); no gradient.
Tensor tile(const Tensor& a, std::int64_t times);
Tensor cat(const std::vector<Tensor>& tensors, int dim);
/// base[..., start : start + size of source] = source in one dimension: base's memory with a new
/// history.
Tensor copy_into(const Tensor& base, int dim, std::int64_t start, const Tensor& source);

// ---- complex numbers as pairs in the last dimension (view_as_complex, view_as_real)
/// The product; b has no gradient.
Tensor complex_mul(const Tensor& a, const Tensor& b);
Tensor as_real(const Tensor& a);

// ---- reductions (aten/src/ATen/native/cuda/Reduce.cuh)
Tensor sum_dims(const Tensor& a, std::uint32_t dims, bool keep);
Tensor mean(const Tensor& a, int dim, bool keep);
Tensor mean_all(const Tensor& a);
/// Over the dimensions of a bit mask.
Tensor mean_dims(const Tensor& a, std::uint32_t dims, bool keep);
Tensor sum_all(const Tensor& a);
/// The norm over one dimension (linalg_vector_norm). No gradient.
Tensor norm(const Tensor& a, int dim, bool keep);
/// Bytes of the buffer and of the semaphores that a reduction over `dims` takes when it is split
/// across thread blocks; {0, 0} when it is not.
std::pair<std::int64_t, std::int64_t> reduce_scratch(const Tensor& a, std::uint32_t dims,
                                                     DType out);

// ---- matrix products (aten/src/ATen/native/LinearAlgebra.cpp, Linear.cpp, cuda/Blas.cpp)
Tensor mm(const Tensor& a, const Tensor& b);
Tensor bmm(const Tensor& a, const Tensor& b);
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b);
/// start + scale * a b, of batches; the scale is not 1.
Tensor baddbmm(const Tensor& start, const Tensor& a, const Tensor& b);
Tensor matmul(const Tensor& a, const Tensor& b);
/// x W^T + bias; weight (out, in), bias empty or (out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

/// The rows of x (rows, in) in groups, each times a matrix of its own of weight (groups, in, out);
/// the groups end at `offsets` (int32). torch.nn.functional.grouped_mm.
Tensor grouped_mm(const Tensor& x, const Tensor& weight, const Tensor& offsets);

// ---- norms, softmax
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias);
/// torch.nn.functional.rms_norm where input and weight have one dtype: one kernel that saves its
/// input and 1 / rms of each row in fp32 (native_functions.yaml and derivatives.yaml,
/// _fused_rms_norm; cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda).
Tensor rms_norm(const Tensor& x, const Tensor& weight);
/// x (batch, channels, ...) by mean and deviation of groups of channels; weight and bias (channels)
/// or empty (native/cuda/group_norm_kernel.cu).
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias);
/// v times g over v's norms along all dimensions but `dim` (native/cuda/WeightNorm.cu).
Tensor weight_norm(const Tensor& v, const Tensor& g, int dim);
/// dtype: of the result (softmax(..., dtype=...)).
Tensor softmax(const Tensor& a, int dim, DType dtype);
Tensor log_softmax(const Tensor& a, int dim, DType dtype);

// ---- attention (aten/src/ATen/native/transformers)
enum class AttentionKernel : std::uint8_t { flash, efficient, math };
struct AttentionArguments {
  Tensor query, key, value;  // (batch, heads, length, head dim)
  Tensor mask;               // empty: none, then `causal` may be set
  bool causal = false;
  bool grouped = false;  // enable_gqa: fewer key/value heads than query heads
  double dropout = 0;
  bool scale_given = false;
};
AttentionKernel choose_attention(const AttentionArguments& arguments);
Tensor attention(const AttentionArguments& arguments);

// ---- convolution (aten/src/ATen/native/Convolution.cpp, cudnn/Conv_v8.cpp)
struct Convolution {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t groups = 1;
  std::int64_t dilation = 1;
};
/// x (batch, channels, height, width), weight (out, channels / groups, height, width), bias empty
/// or (out).
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution& convolution);
/// The same over x (batch, channels, length), weight (out, channels / groups, length).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution& convolution);
/// Each channel of x (batch, channels, ...) by its mean and deviation; in training those of the
/// batch, which are saved, else the running ones (aten/src/ATen/native/Normalization.cpp). The
/// running statistics are updated in place.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, bool training);

// ---- pooling over (batch, channels, height, width) (aten/src/ATen/native/Pool.h)
struct Window {
  std::int64_t size = 2;
  std::int64_t stride = 2;
  std::int64_t padding = 0;
  bool ceiling = false;  // a window that begins inside counts
};
/// Saves its input and where each maximum was (int64).
Tensor max_pool2d(const Tensor& x, const Window& window);
Tensor avg_pool2d(const Tensor& x, const Window& window);
/// The average over size x size pieces; 1: over everything, which is a mean.
Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t size);

/// Every place repeated `factor` times in both directions (native/cuda/UpSampleNearest2d.cu).
Tensor upsample_nearest2d(const Tensor& x, std::int64_t factor);
/// Zeros around: widths before and behind, the last dimension first (native/PadNd.cpp).
Tensor pad(const Tensor& a, const std::vector<std::int64_t>& widths);
/// Shifted round in each dimension of `dims`, one after the other
/// (native/TensorTransformations.cpp).
Tensor roll(const Tensor& a, const std::vector<int>& dims);
/// torch.nn.functional.dropout(inplace=True): noise of the tensor's dtype; on a view the tensor it
/// was taken of gets the history.
void dropout_in_place(const Tensor& a, double p);

// ---- recurrent cells (native/RNN.cpp, native/cuda/RNN.cu): what runs without cuDNN
/// Hidden state and cell of one step, from gates (batch, 4 hidden) and cell (batch, hidden).
std::pair<Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& cell, const Tensor& input_bias,
                                    const Tensor& hidden_bias);
/// Views of all places of a dimension, and tensors joined along a new one.
std::vector<Tensor> unbind(const Tensor& a, int dim);
Tensor stack(const std::vector<Tensor>& tensors, int dim);

// ---- sorting (aten/src/ATen/native/cuda/TensorTopK.cpp, Sort.cpp)
/// The largest `count` of the last dimension (at most 1024 long) and where they are (int64).
std::pair<Tensor, Tensor> topk(const Tensor& a, std::int64_t count);
/// Values in order and where they were (int64); one dimension, no gradient.
std::pair<Tensor, Tensor> sort(const Tensor& a);

// ---- functions of Python with a backward of their own (python_functions.cc)
/// silu(a) b of the halves a, b of the last dimension
/// (NVIDIA/Megatron-LM megatron/core/fusions/fused_bias_swiglu.py, SwiGLUFunction).
Tensor swiglu(const Tensor& x);
/// swiglu(x) times weights (rows, 1), x (rows, 2 width) (WeightedSwiGLUFunction).
Tensor weighted_swiglu(const Tensor& x, const Tensor& weights);
/// The tanh form of gelu(y + bias), bias of the last dimension (fused_bias_gelu.py, GeLUFunction).
Tensor bias_gelu(const Tensor& y, const Tensor& bias);
/// The tensor without its base, itself where it is no view
/// (megatron/core/utils.py, MakeViewlessTensor).
Tensor viewless(const Tensor& x);

// ---- index and loss
Tensor embedding(const Tensor& weight, const Tensor& indices);
/// x[..., i, j, ...]: `indices` broadcast against each other and stand for x's dimensions from
/// `first` on.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices, int first = 0);
/// Sums of rows: `offsets` (bags) say where each bag begins in `indices`
/// (native/cuda/EmbeddingBag.cu, mode sum).
Tensor embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets);
/// The running sum along the last dimension; in `dtype`. No gradient.
Tensor cumsum(const Tensor& x, DType dtype);
/// torch.gather: the element of x's dimension `dim` at every index.
Tensor gather_along(const Tensor& x, int dim, const Tensor& indices);
/// x[..., [i], ...]: one place of a dimension by a list of one number; the dimension stays, of
/// size 1.
Tensor pick(const Tensor& x, int dim);
/// Cross-entropy with mean reduction; logits (rows, classes), target (rows) int64.
Tensor cross_entropy(const Tensor& logits, const Tensor& target);
Tensor mse_loss(const Tensor& a, const Tensor& target);
/// Binary cross-entropy of logits, the mean.
Tensor bce_with_logits(const Tensor& logits, const Tensor& target);

}  // namespace shardfit::tensor
