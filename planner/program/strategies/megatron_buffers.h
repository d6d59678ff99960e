#pragma once
// Megatron's DistributedDataParallel: gradients of a chunk in one buffer, cut into buckets; with
// the distributed optimizer the parameters too
// (megatron/core/distributed/param_and_grad_buffer.py).

#include <cstdint>
#include <string>
#include <vector>

#include "program/megatron.h"
#include "tensor/runtime.h"

namespace shardfit::program {

/// A parameter of this rank with what Megatron marks it with.
struct MegatronParameter {
  tensor::Tensor tensor;
  std::string path;
  bool decays = true;              // weight decay applies: more than one dimension, no bias
  bool shared_embedding = false;   // held by the first and the last stage
  bool counted = true;             // in the norm of gradients: no copy of another stage's
  bool sequence_parallel = false;  // its gradient is summed over tensor ranks
  // Where it lies in its chunk's buffer, in elements.
  std::int64_t start = 0, end = 0;
  tensor::Tensor main_gradient;
};

struct Bucket {
  std::int64_t start = 0, end = 0;
};

/// The buffer of one chunk.
class GradientBuffer {
 public:
  /// Lays out `parameters`, allocates and points them into it. `bucket_size` 0: one bucket;
  /// `ranks`: that hold the same parameters.
  GradientBuffer(tensor::Runtime& runtime, const MegatronJob& job,
                 std::vector<MegatronParameter>& parameters, std::int64_t bucket_size,
                 std::int64_t ranks);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const tensor::Tensor& gradients() const { return gradients_; }

 private:
  void lay_out(bool sharded, std::vector<MegatronParameter>& parameters, std::int64_t bucket_size,
               std::int64_t ranks);

  std::vector<Bucket> buckets_;
  tensor::Tensor parameters_, gradients_;
};

}  // namespace shardfit::program
