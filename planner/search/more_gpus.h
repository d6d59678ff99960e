#pragma once
// A job that does not fit, on more GPUs of the same kind.

#include <optional>

#include "search/plan.h"
#include "search/ways.h"

namespace shardfit::search {

/// The fewest GPUs, doubled from the option's up to 64, on which its job fits, shared in any way
/// and, where it takes that, with full recompute and micro-batches of one sample: the fastest way
/// at that count. Nothing where none does, or `stop` says so first.
std::optional<Change> find_more_gpus(const Option& option, Lowerings& lowerings,
                                     const StopCheck& stop);

}  // namespace shardfit::search
