#include "search/nearest_degree.h"

#include <algorithm>

namespace shardfit::search {

std::int64_t nearest_degree(const program::DegreeFault& fault, program::TrainingJob job,
                            std::int64_t gpus, const program::Lowering& lowering) {
  const bool tensor = fault.key == "tp", pipeline = fault.key == "pp" && job.megatron;
  if (!tensor && !pipeline) return fault.nearest;
  std::int64_t& degree = pipeline       ? job.megatron->pipeline
                         : job.megatron ? job.megatron->tensor
                                        : job.titan->tensor;
  std::int64_t& data = job.megatron ? job.megatron->data : job.titan->data;
  const std::int64_t beside = !job.megatron ? 1
                              : tensor      ? job.megatron->pipeline
                                            : job.megatron->tensor;
  const std::int64_t shared = gpus / beside, asked = degree;
  const auto possible = [&](std::int64_t candidate) {
    if (candidate < 1 || shared % candidate != 0) return false;
    degree = candidate;
    data = shared / candidate;
    const auto faults = lowering.check(job);
    return std::none_of(faults.begin(), faults.end(),
                        [&](const auto& other) { return other.key == fault.key; });
  };
  for (std::int64_t distance = 1; distance < gpus; ++distance) {
    for (const std::int64_t candidate : {asked - distance, asked + distance}) {
      if (possible(candidate)) return candidate;
    }
  }
  return 1;
}

}  // namespace shardfit::search
