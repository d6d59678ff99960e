#pragma once
// A job that does not fit, on more GPUs of the same kind.

#include <cstdint>
#include <optional>
#include <string>

#include "search/plan.h"
#include "search/ways.h"

namespace shardfit::search {

struct MoreGpus {
  std::optional<Change> change;  // on the fewest that do
  std::int64_t looked_to = 0;    // so many GPUs do not, nor fewer; 0: no more were looked at
  /// "nor does it fit on 2 to 64 h200, ...": of what was looked at in vain for `option`.
  std::string words(const Option& option) const;
};

/// The fewest GPUs, doubled from the option's up to 64, on which its job fits, shared in any way
/// and, where it takes that, with full recompute and micro-batches of one sample: the fastest way
/// at that count. Where a way to share was asked for, the others are tried on as many GPUs as the
/// option has, too. No change where none does, or `stop` says so first.
MoreGpus find_more_gpus(const Option& option, Lowerings& lowerings, const StopCheck& stop);

}  // namespace shardfit::search
