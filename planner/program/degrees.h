#pragma once
// Which degrees of parallelism a model takes: what must divide what, and the nearest degree that
// does.

#include <cstdint>
#include <string>
#include <vector>

#include "base/divisors.h"

namespace shardfit::program {

using shardfit::nearest_divisor;

/// A degree that cannot be.
struct DegreeFault {
  std::string key;  // as in plan files: tp, pp, dp, ...
  std::string message;
  std::int64_t nearest = 1;  // the nearest degree that can
};

/// Numbers that tensor parallelism splits.
struct SplitNumbers {
  std::int64_t heads = 1;
  std::int64_t key_value_heads = 1;
  std::int64_t ffn = 1;
  std::int64_t sequence = 1;  // 0: not split (no sequence parallelism)
};

/// Faults of a tensor parallel degree, each with the nearest degree that divides all numbers.
std::vector<DegreeFault> check_tensor_degree(const SplitNumbers& numbers, std::int64_t degree);

}  // namespace shardfit::program
