#pragma once
// What a card keeps between steps at least, by counting: no program is run.

#include <cstdint>

#include "search/training_job.h"

namespace shardfit::search {

/// Parameters, gradients and states of a model of `parameters` on the fullest of `gpus` cards under
/// a way to share the job, which splits it as `split` says, when the optimizer's step begins: no
/// less than this many bytes. `job` is that of all ranks.
std::int64_t kept_at_least(const RankJob& job, spec::Parallel parallel, const spec::Split& split,
                           std::int64_t gpus, std::int64_t parameters);

}  // namespace shardfit::search
