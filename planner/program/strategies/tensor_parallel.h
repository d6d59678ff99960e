#pragma once
// Tensor parallelism as Megatron-core does it: linear layers split by columns or rows, the
// embedding and the loss by vocabulary, with or without sequence parallelism (NVIDIA/Megatron-LM
// core_v0.16.1, megatron/core/tensor_parallel).

#include <cstdint>
#include <map>
#include <vector>

#include "tensor/runtime.h"

namespace shardfit::program {

/// One rank's part of a tensor parallel group. It must outlive the graphs made with it.
class TensorParallel {
 public:
  /// `ranks` of the group, this one at `place`; `sequence`: sequence parallelism.
  TensorParallel(tensor::Runtime& runtime, std::vector<std::int32_t> ranks, std::int64_t place,
                 bool sequence);
  std::int64_t degree() const { return static_cast<std::int64_t>(ranks_.size()); }
  bool sequence() const { return sequence_; }

  /// mappings.py, copy_to_tensor_model_parallel_region: its gradient is summed.
  tensor::Tensor copy_in(const tensor::Tensor& x);
  /// reduce_from_tensor_model_parallel_region: summed in place.
  tensor::Tensor reduce_out(const tensor::Tensor& x);
  /// reduce_scatter_to_sequence_parallel_region: (s, b, h) -> (s / degree, b, h).
  tensor::Tensor scatter_sum(const tensor::Tensor& x);
  /// scatter_to_sequence_parallel_region: this rank's rows, a view.
  tensor::Tensor own_rows(const tensor::Tensor& x);
  /// layers.py, LinearWithGradAccumulationAndAsyncCommunication; `column`: the input is gathered
  /// (sequence parallelism) or its gradient summed, while the weight's gradient is made.
  tensor::Tensor linear(const tensor::Tensor& x, const tensor::Tensor& weight,
                        const tensor::Tensor& bias, bool column);
  /// VocabParallelEmbedding.forward up to the exchange.
  tensor::Tensor embedding(const tensor::Tensor& weight, const tensor::Tensor& ids);
  /// cross_entropy.py; `fused`: the native form of fused_cross_entropy.py. logits (s, b, V /
  /// degree), target (s, b) -> (s, b) in fp32.
  tensor::Tensor cross_entropy(const tensor::Tensor& logits, const tensor::Tensor& target,
                               bool fused);
  /// parallel_state.GlobalMemoryBuffer: one buffer a dtype that grows and stays.
  tensor::Tensor buffer(const tensor::Shape& shape, DType dtype);

  /// Queues an exchange of the group behind the current stream; empty groups exchange nothing.
  std::uint32_t exchange(CollectiveKind kind, const tensor::Tensor& whole);
  void wait(std::uint32_t event);

 private:
  tensor::Tensor gathered(const tensor::Tensor& x, std::uint32_t& event);

  tensor::Runtime& runtime_;
  std::vector<std::int32_t> ranks_;
  std::int64_t place_;
  bool sequence_;
  std::uint32_t group_ = 0;
  std::uint8_t stream_ = 0;
  std::map<DType, tensor::Tensor> buffers_;

  friend struct TensorParallelBackward;
};

}  // namespace shardfit::program
