#pragma once
// Intervals of time: what they cover together, what they share.

#include <algorithm>
#include <vector>

namespace shardfit::run {

struct Interval {
  double start = 0, end = 0;
};

inline double overlap(const Interval& a, const Interval& b) {
  return std::max(0.0, std::min(a.end, b.end) - std::max(a.start, b.start));
}

/// Sorts the intervals and joins those that touch.
inline void unite(std::vector<Interval>& intervals) {
  const auto before = [](const Interval& a, const Interval& b) { return a.start < b.start; };
  if (!std::is_sorted(intervals.begin(), intervals.end(), before)) {
    std::sort(intervals.begin(), intervals.end(), before);
  }
  std::size_t kept = 0;
  for (const Interval& one : intervals) {
    if (kept > 0 && one.start <= intervals[kept - 1].end) {
      intervals[kept - 1].end = std::max(intervals[kept - 1].end, one.end);
    } else {
      intervals[kept++] = one;
    }
  }
  intervals.resize(kept);
}

/// Seconds of united intervals.
inline double length(const std::vector<Interval>& united) {
  double sum = 0;
  for (const Interval& one : united) sum += one.end - one.start;
  return sum;
}

/// Seconds that two lists of united intervals share.
inline double common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += overlap(a[i], b[j]);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return sum;
}

}  // namespace shardfit::run
