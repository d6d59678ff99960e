#pragma once
// The largest number that fits, found by doubling and then by halving between.

#include <algorithm>
#include <cstdint>

namespace shardfit::search {

/// The largest n in 1..most for which `fits(n)` holds, 0 where none does; `fits` is taken to hold
/// up to that number and not above it, so that some ten numbers of a thousand are tried.
template <class Fits>
std::int64_t largest(std::int64_t most, Fits fits) {
  std::int64_t good = 0, bad = 1;
  while (bad <= most && fits(bad)) {
    good = bad;
    bad = std::min(2 * bad, most + 1);
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace shardfit::search
