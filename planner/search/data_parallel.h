#pragma once
// What torch.nn.DataParallel does to a job that nobody asked for.

#include "search/training_job.h"

namespace shardfit::search {

/// transformers' Trainer does not have accelerate wrap a model that DataParallel wraps: mixed
/// precisions become fp32.
void drop_autocast(spec::OptionSpec& option);

/// Says that, and what else surprises. `asked`: the option before drop_autocast.
void warn_of_data_parallel(const spec::OptionSpec& asked, RankJob& job);

/// One process has the GPUs of one machine: more are a fault at `where`.
bool in_one_machine(const spec::OptionSpec& option, const Location& where, Diagnostics& faults);

}  // namespace shardfit::search
