#pragma once
// A degree in the place of one that cannot be.

#include <cstdint>

#include "program/degrees.h"
#include "program/training.h"

namespace shardfit::search {

/// In the place of a degree that the model does not take: the nearest that it takes and that leaves
/// every GPU a part; 1 where there is no other.
std::int64_t nearest_degree(const program::DegreeFault& fault, program::TrainingJob job,
                            std::int64_t gpus, const program::Lowering& lowering);

}  // namespace shardfit::search
