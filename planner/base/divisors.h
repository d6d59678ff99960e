#pragma once
// Divisors of whole numbers.

#include <cstdint>

namespace shardfit {

/// The divisor of `number` nearest to `wanted`, the smaller of two that are equally near; 1 where
/// number < 1.
inline std::int64_t nearest_divisor(std::int64_t number, std::int64_t wanted) {
  if (number < 1) return 1;
  const std::int64_t most = number + (wanted < 0 ? -wanted : wanted);
  for (std::int64_t distance = 0; distance <= most; ++distance) {
    for (const std::int64_t candidate : {wanted - distance, wanted + distance}) {
      if (candidate >= 1 && candidate <= number && number % candidate == 0) return candidate;
    }
  }
  return 1;
}

}  // namespace shardfit
