#pragma once
// Offsets for buffers with known lifetimes, so that the arena is smallest: what fragmentation must
// cost at least.

#include <cstdint>
#include <string>
#include <vector>

#include "partition/instances/instances.h"

namespace shardfit::partition {

struct OffsetOptions {
  double budget_seconds = 0;            // CPU seconds; 0: the step limit alone
  std::int64_t most_steps = 6'000'000;  // some ten to thirty seconds
};

struct OffsetResult {
  std::int64_t peak = 0;              // largest offset + size
  std::int64_t lower_bound = 0;       // largest sum of sizes alive together
  double gap = 0;                     // (peak - lower bound) / peak
  bool proven = false;                // peak == lower bound, or everything smaller was ruled out
  std::vector<std::int64_t> offsets;  // by buffer
  std::int64_t steps = 0;             // placements tried
  std::string bound;                  // "live bytes" or "exhausted"
};

/// Places every buffer. Searches canonical placements (offsets never fall from one to the next,
/// each at its lowest place) at the lower bound first; below what heuristics reach it then closes
/// in by bisection while steps last. Pruned by the time each point of the line still needs.
OffsetResult assign_offsets(const BufferInstance& instance, const OffsetOptions& options);

/// Largest offset + size; -1 where two buffers alive together overlap or an offset is negative.
std::int64_t check_offsets(const BufferInstance& instance,
                           const std::vector<std::int64_t>& offsets);

}  // namespace shardfit::partition
