#include "search/least_kept.h"

#include <cmath>

namespace shardfit::search {
namespace {

using spec::Parallel;

/// Bytes a parameter.
struct Kept {
  double weights = 0, gradients = 0, states = 0;
};

Kept kept_of(const RankJob& job) {
  const program::TrainingJob& own = job.job;
  const double adam = own.optimizer == "adamw" ? 2 : 0;           // others: some have none
  if (own.megatron && own.autocast) return {2, 4, 4 + 4 * adam};  // 16 bits, fp32 copies
  if (own.framework == "deepspeed" && own.autocast) return {2, 0, 4 + 4 * adam};
  const double bytes = own.parameters == DType::f32 ? 4 : 2;
  if (own.framework == "deepspeed" || own.optimizer_in_backward) return {bytes, 0, bytes * adam};
  return {bytes, bytes, bytes * adam};
}

/// Among how many cards weights, gradients and states are split.
struct Parts {
  double weights = 1, gradients = 1, states = 1;
};

Parts parts_of(Parallel parallel, const spec::Split& split, std::int64_t gpus, bool titan) {
  const auto all = static_cast<double>(gpus);
  const auto model = static_cast<double>(split.tensor * split.pipeline);
  if (titan && model > 1) return {all, all, all};  // fully_shard takes what is left
  switch (parallel) {
    case Parallel::zero1:
      return {model, model, all};
    case Parallel::zero2:
      return {model, all, all};
    case Parallel::zero3:
    case Parallel::fsdp1:
    case Parallel::fsdp2:
      return {all, all, all};
    default:
      return {model, model, model};
  }
}

}  // namespace

std::int64_t kept_at_least(const RankJob& job, Parallel parallel, const spec::Split& split,
                           std::int64_t gpus, std::int64_t parameters) {
  const bool alone = parallel == Parallel::none || parallel == Parallel::independent;
  const Parts parts = parts_of(parallel, split, alone ? 1 : gpus, job.job.titan.has_value());
  Kept kept = kept_of(job);
  if (job.job.lora) kept = {2, 0, 0};  // whatever is frozen
  const double each =
      kept.weights / parts.weights + kept.gradients / parts.gradients + kept.states / parts.states;
  return static_cast<std::int64_t>(std::floor(each * static_cast<double>(parameters)));
}

}  // namespace shardfit::search
