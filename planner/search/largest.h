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

/// The same where it is likely near to `guess`, 1 or more: steps from there are doubled.
template <class Fits>
std::int64_t largest_near(std::int64_t guess, std::int64_t most, Fits fits) {
  if (most < 1) return 0;
  guess = std::clamp<std::int64_t>(guess, 1, most);
  std::int64_t good = 0, bad = most + 1, step = 1;
  if (fits(guess)) {
    for (good = guess; good < most; step *= 2) {
      const std::int64_t next = std::min(most, good + step);
      if (!fits(next)) {
        bad = next;
        break;
      }
      good = next;
    }
  } else {
    for (bad = guess; bad > 1; step *= 2) {
      const std::int64_t next = std::max<std::int64_t>(1, bad - step);
      if (fits(next)) {
        good = next;
        break;
      }
      bad = next;
    }
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace shardfit::search
