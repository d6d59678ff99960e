#pragma once
// The kernels behind scaled_dot_product_attention, and what they share.

#include "tensor/node.h"
#include "tensor/ops.h"

namespace shardfit::tensor {

/// The memory-efficient kernel (aten/src/ATen/native/transformers/cuda/attention.cu).
Tensor efficient_attention(const AttentionArguments& arguments);

/// A node over query, key, value and mask that keeps the first three; empty where none wants a
/// gradient.
NodeRef attention_node(const char* kind, Backward backward, const AttentionArguments& arguments);
/// Tells the time clock of one attention kernel.
void record_attention(const char* kind, const AttentionArguments& arguments,
                      const std::vector<Tensor>& outputs, const std::vector<Tensor>& others = {});
/// A boolean mask as numbers to add: 0 and -inf (attention.cpp, convert_boolean_attn_mask).
Tensor additive_mask(const Tensor& mask, DType dtype);
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Plain products and a softmax, with the whole matrix of scores
/// (transformers/attention.cpp, _scaled_dot_product_attention_math).
Tensor math_attention(const AttentionArguments& arguments);

}  // namespace shardfit::tensor
