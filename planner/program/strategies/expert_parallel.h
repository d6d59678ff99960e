#pragma once
// Experts spread over ranks as Megatron-core does it: the router, the exchanges of the all-to-all
// token dispatcher, what it keeps (NVIDIA/Megatron-LM core_v0.16.1,
// megatron/core/transformer/moe).

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensor/runtime.h"

namespace shardfit::program {

/// One rank's part of an expert parallel group. It must outlive the graphs made with it.
class ExpertParallel {
 public:
  /// `ranks` of the group.
  ExpertParallel(tensor::Runtime& runtime, std::vector<std::int32_t> ranks);

  /// moe_utils.py, RouterGatingLinearFunction in the input's dtype: x (s, b, h), weight (experts,
  /// h) -> (s, b, experts).
  tensor::Tensor router(const tensor::Tensor& x, const tensor::Tensor& weight);
  /// tensor_parallel/mappings.py, _AllToAll: rows of x (rows, ...) to the ranks of their experts;
  /// `received` rows come. `busiest`: rows of the rank that gets most, which all wait for.
  tensor::Tensor exchange_rows(const tensor::Tensor& x, std::int64_t received,
                               std::int64_t busiest);
  /// gather_from_sequence_parallel_region of a rank's counts (experts) -> (ranks * experts).
  tensor::Tensor gather_counts(const tensor::Tensor& counts);
  /// A copy to the host on the dispatcher's own stream: the memory is free when that stream has
  /// caught up (moe_utils.py, maybe_move_tensor_to_cpu).
  void send_to_host(const tensor::Tensor& x);
  /// An attribute of the running module's dispatcher, which outlives its forward; `once`: the first
  /// one stays, and later ones are copied into it.
  void keep(const std::string& name, const tensor::Tensor& x, bool once);

 private:
  void exchange(CollectiveKind kind, DType dtype, std::int64_t bytes);

  tensor::Runtime& runtime_;
  std::vector<std::int32_t> ranks_;
  std::uint32_t group_ = 0;
  std::uint8_t stream_ = 0;
  std::map<std::pair<std::uint32_t, std::string>, tensor::Tensor> kept_;  // by module

  friend struct ExpertParallelBackward;
};

}  // namespace shardfit::program
