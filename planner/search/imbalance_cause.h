#pragma once
// Why one GPU of an option holds or computes more than another.

#include <cstdint>
#include <string>

#include "search/plan.h"

namespace shardfit::search {

/// What `more` holds at its peak beyond what `less` holds at its own, the largest parts first, each
/// with its bytes; "" where nothing is known.
std::string cause_of_memory(const Option& option, const Gpu& more, const Gpu& less);

/// What `more` computes in a step beyond `less`; "" where nothing is known.
std::string cause_of_time(const Option& option, const Gpu& more, const Gpu& less);

/// The stage of a pipeline that a GPU has; 0 where there is none.
std::int64_t stage_of(const Option& option, const Gpu& gpu);

/// Layers whose modules the GPU's program has.
std::int64_t layers_of(const Gpu& gpu);

}  // namespace shardfit::search
