#pragma once
// Tensor and sequence parallelism as torchtitan's apply_tp has it: what DTensor's redistributions
// and its loss_parallel allocate on one rank (torchtitan v0.2.2 models/llama3/infra/parallelize.py;
// pytorch v2.13 torch/distributed/tensor/placement_types.py, torch/distributed/tensor/parallel/
// style.py and loss.py, torch/distributed/_functional_collectives.py).

#include <string>
#include <vector>

#include "model/machine.h"
#include "program/torchtitan.h"
#include "tensor/ops.h"

namespace shardfit::program {

class TitanTensor {
 public:
  /// `sharded`: fully_shard has the parameters, and takes of an embedding's gradient this rank's
  /// rows.
  TitanTensor(tensor::Runtime& runtime, const TitanJob& job, std::int64_t vocabulary, bool sharded);

  /// One of the language's functions of tensor parallel programs; false: not one of them. With one
  /// rank they give back what they are given.
  bool run(const std::string& name, model::Value* arguments, model::Value& result);

  std::int64_t degree() const { return static_cast<std::int64_t>(ranks_.size()); }
  /// From shards of `dim` to the whole: gathered one behind the other in dimension 0, then put in
  /// order, which is a view where all dimensions before `dim` are of size 1.
  tensor::Tensor whole_of(const tensor::Tensor& shard, int dim);
  /// From a partial sum to shards of dimension 1: the chunks one behind the other, then summed and
  /// scattered. The chunks are held until somebody waits for the result.
  tensor::Tensor scattered_sum(const tensor::Tensor& partial, bool waited);

  std::int64_t vocabulary() const { return vocabulary_; }
  /// Without sequence parallelism every rank holds the whole between layers, and sums go to all.
  bool sequence() const { return sequence_; }
  bool sharded() const { return sharded_; }
  tensor::Tensor all_reduced(const tensor::Tensor& x);

 private:
  tensor::Tensor gather(const tensor::Tensor& x, int dim);
  tensor::Tensor scatter(const tensor::Tensor& x);
  tensor::Tensor embedding(const tensor::Tensor& weight, const tensor::Tensor& ids);
  tensor::Tensor cross_entropy(const tensor::Tensor& logits, const tensor::Tensor& labels);
  tensor::Tensor column_input(const tensor::Tensor& x);
  /// AsyncCollectiveTensor: the first operator that takes it waits.
  void await(const tensor::Tensor& x);
  void exchange(CollectiveKind kind, const tensor::Tensor& whole);

  struct Pending {
    tensor::Tensor result, input;
  };
  tensor::Runtime& runtime_;
  std::vector<std::int32_t> ranks_;
  std::int64_t vocabulary_;
  bool sequence_;
  bool sharded_;
  std::vector<Pending> pending_;
};

}  // namespace shardfit::program
