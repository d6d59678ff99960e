#pragma once
// How the ranks of a job share it: a strategy sees the moments at which the framework's wrapper
// acts. One strategy a file in strategies/.

#include <cstdint>
#include <memory>
#include <vector>

#include "model/machine.h"
#include "program/optimizer.h"
#include "tensor/runtime.h"

namespace shardfit::program {

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// The model is built; the wrapper's constructor runs.
  virtual void wrap(const std::vector<tensor::Tensor>& trainable) = 0;
  /// Before and after the wrapped model's forward. `synchronize`: gradients of this pass are
  /// exchanged.
  virtual void before_forward(bool synchronize) = 0;
  virtual void after_forward(bool synchronize, model::Value& result) = 0;
  /// A parameter's gradient has been accumulated.
  virtual void after_gradient(tensor::TensorBody& parameter) = 0;
  /// The backward pass has ended.
  virtual void after_backward() = 0;
};

/// DistributedDataParallel's settings.
struct DdpJob {
  std::int64_t ranks = 2;
  std::int64_t rank = 0;
  std::int64_t bucket_bytes = 25 << 20;
  bool bucket_bytes_given = false;  // then the first bucket is not a smaller one
  bool bucket_view = false;  // gradients are views of the buckets
  bool static_graph = false;
  bool find_unused = false;
  bool no_sync = false;  // only the last micro-batch of a step exchanges gradients
};

/// ZeroRedundancyOptimizer's settings.
struct ZeroRedundancyJob {
  std::int64_t ranks = 2;
  std::int64_t rank = 0;
  bool bucket_view = false;  // parameters are views of one flat tensor a rank
};

/// An optimizer over this rank's share of the parameters. Mixed dtypes share no bucket in torch; here
/// each part is taken to be of one dtype.
std::unique_ptr<Optimizer> make_zero_redundancy(std::unique_ptr<Optimizer> inner,
                                                const ZeroRedundancyJob& job);

std::unique_ptr<Strategy> make_ddp(const DdpJob& job, model::Machine& machine);

}  // namespace shardfit::program
