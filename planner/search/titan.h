#pragma once
// torchtitan's words: what its Trainer does where a job says something, and what it lacks.

#include "search/training_job.h"

namespace shardfit::search {

/// The Trainer's own settings; words that it has no place for are faults where they stand.
void titan_words(const spec::OptionSpec& option, RankJob& out, Diagnostics& faults);

/// A precision of torchtitan: training.dtype, and mixed_precision_param, which is bfloat16 beside
/// either; with fully_shard its policy, else autocast.
void set_titan_precision(spec::Precision precision, program::TrainingJob& job);

/// The job of one rank of `ranks` under a strategy: FSDP's units, or buckets of data parallelism.
program::TrainingJob titan_job(program::TrainingJob job, spec::Parallel parallel,
                               std::int64_t ranks, int rank);

}  // namespace shardfit::search
