#pragma once
// Ways to share a job among the GPUs of an option, as the lowering takes them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "program/training.h"
#include "spec/job_spec.h"

namespace shardfit::search {

/// GPUs whose processes see each other's cards, at most: the usual machine of eight.
inline constexpr std::int64_t most_in_a_machine = 8;

/// The word of a strategy: "ddp".
const std::string& name_of(spec::Parallel parallel);

/// The same with the degrees where it has several: "tensor (tp 2, dp 2)".
std::string name_of(spec::Parallel parallel, const spec::Split& split);

/// Into how many parts the job of any rank is split; `gpus` data-parallel ranks where it has
/// no tensor or pipeline ranks.
spec::Split split_of(const program::TrainingJob& job, spec::Parallel parallel, std::int64_t gpus);

/// What the cards share under a strategy, in plain words, for `gpus` of them; "" for one.
std::string what_is_shared(const program::TrainingJob& job, spec::Parallel parallel,
                           const spec::Split& split, std::int64_t gpus);

/// Ranks that stand for all: those of a group run programs of the same sizes, so one is lowered.
struct RankGroup {
  int rank = 0;            // the one that is lowered
  std::vector<int> ranks;  // all of the group, ascending
  std::string role;        // "every rank", "stage 0"
};
std::vector<RankGroup> rank_groups(const program::TrainingJob& job, spec::Parallel parallel,
                                   std::int64_t gpus);

/// The program of a group's first rank; groups share one where nothing in it depends on the rank.
struct LoweredGroup {
  RankGroup group;
  std::shared_ptr<const Program> program;
};
/// `job_of` gives the job of a rank. Where `take` is given it sees each group as soon as it is
/// lowered, and those after the first that it does not take are not lowered.
std::vector<LoweredGroup> lower_groups(const program::Lowering& lowering,
                                       std::vector<RankGroup> groups,
                                       const std::function<program::TrainingJob(int rank)>& job_of,
                                       const std::function<bool(const LoweredGroup&)>& take = {});

/// The job of `rank` of `ranks` under a strategy. `job` is the one of a single GPU; one of Megatron
/// has its degrees already.
program::TrainingJob job_of_rank(program::TrainingJob job, spec::Parallel parallel,
                                 std::int64_t ranks, int rank);

/// Why a strategy refuses the job; "" where it does not.
std::string cannot_share(const program::TrainingJob& job, spec::Parallel parallel);

/// What FullyShardedDataParallel flattens together.
spec::Assumption units_of_fsdp1(const program::TrainingJob& job);

}  // namespace shardfit::search
