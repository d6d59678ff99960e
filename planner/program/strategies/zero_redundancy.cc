// ZeroRedundancyOptimizer: whole parameters are dealt out over the ranks, each keeps the states of
// its own (torch/distributed/optim/zero_redundancy_optimizer.py).

#include <algorithm>
#include <numeric>

#include "program/strategy.h"
#include "tensor/runtime.h"

namespace shardfit::program {
namespace {

using tensor::Tensor;

class ZeroRedundancy : public Optimizer {
 public:
  ZeroRedundancy(std::unique_ptr<Optimizer> inner, const ZeroRedundancyJob& job)
      : inner_(std::move(inner)), job_(job) {}

  void construct(const std::vector<Tensor>& parameters) override {
    parts_ = deal_out(parameters);
    if (job_.bucket_view) move_into_buckets();
    inner_->construct(own());
  }

  void step(const std::vector<Tensor>&) override {
    inner_->step(own());
    broadcast_parts();
  }

 private:
  const std::vector<Tensor>& own() const { return parts_[static_cast<std::size_t>(job_.rank)]; }

  /// Every rank sends the parameters it has stepped: one by one, or its bucket (_sync_params).
  void broadcast_parts() const {
    std::vector<std::uint32_t> works;
    tensor::Runtime* runtime = nullptr;
    for (const std::vector<Tensor>& part : parts_) {
      std::int64_t bucket = 0;
      for (const Tensor& p : part) {
        runtime = &p.runtime();
        const std::int64_t bytes = p.count() * element_size(p.dtype());
        bucket += bytes;
        if (!job_.bucket_view) works.push_back(broadcast(*runtime, p.dtype(), bytes));
      }
      if (job_.bucket_view && runtime && bucket > 0) {
        works.push_back(broadcast(*runtime, part.front().dtype(), bucket));
      }
    }
    for (const std::uint32_t done : works) runtime->wait_event(done, runtime->current_stream);
  }

  std::uint32_t broadcast(tensor::Runtime& runtime, DType dtype, std::int64_t bytes) const {
    std::vector<std::int32_t> all(static_cast<std::size_t>(job_.ranks));
    std::iota(all.begin(), all.end(), 0);
    Collective collective;
    collective.kind = CollectiveKind::broadcast;
    collective.dtype = dtype;
    collective.bytes = bytes;
    collective.group = runtime.group(all);
    return runtime.exchange(collective, runtime.stream("nccl"));
  }

  /// Largest first, each to the rank that has least (_partition_parameters).
  std::vector<std::vector<Tensor>> deal_out(std::vector<Tensor> parameters) const {
    std::vector<std::vector<Tensor>> parts(static_cast<std::size_t>(job_.ranks));
    std::vector<std::int64_t> sizes(parts.size(), 0);
    std::stable_sort(parameters.begin(), parameters.end(),
                     [](const Tensor& a, const Tensor& b) { return a.count() > b.count(); });
    for (const Tensor& p : parameters) {
      const auto least = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
      parts[static_cast<std::size_t>(least)].push_back(p);
      sizes[static_cast<std::size_t>(least)] += p.count();
    }
    return parts;
  }

  /// parameters_as_bucket_view: each rank's parameters become views of one flat tensor
  /// (_build_param_buckets).
  void move_into_buckets() {
    for (const std::vector<Tensor>& part : parts_) {
      if (part.empty()) continue;
      tensor::Runtime& runtime = part.front().runtime();
      std::int64_t count = 0;
      for (const Tensor& p : part) count += p.count();
      const Tensor bucket = runtime.empty(tensor::Shape{count}, part.front().dtype());
      runtime.set_category(bucket, Category::parameter);
      for (const Tensor& p : part) runtime.rebase(p, bucket);
    }
  }

  std::unique_ptr<Optimizer> inner_;
  ZeroRedundancyJob job_;
  std::vector<std::vector<Tensor>> parts_;
};

}  // namespace

std::unique_ptr<Optimizer> make_zero_redundancy(std::unique_ptr<Optimizer> inner,
                                                const ZeroRedundancyJob& job) {
  return std::make_unique<ZeroRedundancy>(std::move(inner), job);
}

}  // namespace shardfit::program
