#pragma once
// Megatron's optimizer around Adam: fp32 copies of half-precision parameters, whole or this data
// rank's shard of each bucket, the norm of gradients, the step
// (megatron/core/optimizer/optimizer.py, distrib_optimizer.py, clip_grads.py).

#include <map>
#include <memory>
#include <vector>

#include "program/optimizer.h"
#include "program/strategies/megatron_buffers.h"

namespace shardfit::program {

class MegatronOptimizer {
 public:
  struct Chunk {
    std::vector<MegatronParameter>* parameters;
    const GradientBuffer* buffer;
    std::vector<MegatronParameter>* experts;  // spread over ranks: an optimizer of their own
    const GradientBuffer* expert_buffer;
  };
  /// What the constructor allocates. `dtype`: of the parameters.
  MegatronOptimizer(tensor::Runtime& runtime, const MegatronJob& job, const std::string& name,
                    Implementation implementation, DType dtype, const std::vector<Chunk>& chunks);

  /// What the loss is multiplied with.
  const tensor::Tensor& loss_scale() const { return scale_; }
  void zero_grad();
  void step();

 private:
  /// A parameter's part that this rank updates.
  struct Part {
    tensor::Tensor gradient;  // in the buffer, flat or of the parameter's shape
    tensor::Tensor main;      // what Adam sees
    bool counted = true;
  };

  /// `first`: the group of those with weight decay.
  void make_groups(std::vector<MegatronParameter>& parameters, const GradientBuffer& buffer,
                   std::size_t first, std::int64_t ranks, std::int64_t rank);
  void make_main_parameters(std::size_t first);
  void copy_gradients();
  /// Of the groups from `first` to before `end`.
  void take_norm(std::size_t first, std::size_t end);
  void fused_adam(const std::vector<Part>& group);

  tensor::Runtime& runtime_;
  DType dtype_;
  bool fused_;
  bool sharded_ = false;
  std::vector<std::vector<Part>> groups_;  // with weight decay, without; the same of experts
  std::vector<std::unique_ptr<Optimizer>> adam_;
  std::map<const tensor::TensorBody*, std::pair<tensor::Tensor, tensor::Tensor>> states_;
  tensor::Tensor scale_, found_infinite_, overflow_, fused_overflow_;
  std::vector<tensor::Tensor> of_experts_;  // the same scalars of their optimizer
};

}  // namespace shardfit::program
