#pragma once
// One variant a layer, least time within a byte cap: the multiple-choice knapsack.

#include <cstdint>
#include <vector>

namespace shardfit::partition {

struct VariantCost {
  double time = 0;
  double bytes = 0;
};

struct VariantChoice {
  bool feasible = false;
  bool exact = true;      // false: the step limit stopped it; then `bound` is below `time`
  double time = 0;        // of the choice
  double bound = 0;       // no choice that fits is faster
  std::vector<int> pick;  // by layer, index into its variants
};

/// Least sum of times with sum of bytes <= cap. Branch and bound on the linear relaxation (at most
/// one layer split between neighbours of its lower convex hull; Sinha and Zoltners 1979); equal
/// two-variant layers are one integer variable. Stops early at a choice no slower than
/// `good_enough`, and where nothing faster than `limit` exists (then infeasible or not below it).
VariantChoice choose_variants(const std::vector<std::vector<VariantCost>>& layers, double cap,
                              double good_enough, double limit, std::int64_t most_steps = 200'000);

}  // namespace shardfit::partition
