#pragma once
// Ways to share a job among the GPUs of an option, as the lowering takes them.

#include <string>
#include <vector>

#include "program/training.h"
#include "spec/job_spec.h"

namespace shardfit::search {

/// The word of a strategy: "ddp".
const std::string& name_of(spec::Parallel parallel);

/// What the cards share under a strategy, in plain words, for `gpus` of them; "" for one.
std::string what_is_shared(spec::Parallel parallel, std::int64_t gpus);

/// Ranks that stand for all: those of a group run programs of the same sizes, so one is lowered.
struct RankGroup {
  int rank = 0;             // the one that is lowered
  int first = 0, last = 0;  // ranks of the group
  std::string role;         // "every rank", "rank 0"
};
std::vector<RankGroup> rank_groups(spec::Parallel parallel, std::int64_t gpus);

/// The job of `rank` of `ranks` under a strategy. `job` is the one of a single GPU.
program::TrainingJob job_of_rank(program::TrainingJob job, spec::Parallel parallel,
                                 std::int64_t ranks, int rank);

/// Why a strategy refuses the job; "" where it does not.
std::string cannot_share(const program::TrainingJob& job, spec::Parallel parallel);

}  // namespace shardfit::search
