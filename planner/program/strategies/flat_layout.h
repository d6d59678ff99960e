#pragma once
// One flat tensor of all parameters, cut into equal parts of the ranks
// (deepspeed/runtime/zero/stage_1_and_2.py, get_data_parallel_partitions and
// initialize_gradient_partition).

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shardfit::program {

/// Where the parameters lie, in elements.
class FlatLayout {
 public:
  FlatLayout() = default;
  /// `counts`: of the parameters. `round_robin`: dealt out over the ranks, so that neighbours are
  /// reduced to different ones.
  FlatLayout(const std::vector<std::int64_t>& counts, std::int64_t ranks, std::int64_t rank,
             bool round_robin) {
    std::vector<std::size_t> order(counts.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (round_robin) {
      const auto n = static_cast<std::size_t>(ranks);
      std::stable_sort(order.begin(), order.end(),
                       [n](std::size_t a, std::size_t b) { return a % n < b % n; });
    }
    places_.resize(counts.size());
    for (std::size_t i : order) {
      places_[i] = {total, counts[i]};
      total += counts[i];
    }
    const std::int64_t alignment = 2 * ranks;  // four bytes of 16-bit elements
    flat_count = (total + alignment - 1) / alignment * alignment;
    partition = flat_count / ranks;
    for (std::size_t i : order) {
      if (share(i, rank) > 0) own.push_back(i);
    }
  }

  /// Elements of parameter i in the part of `rank`.
  std::int64_t share(std::size_t i, std::int64_t rank) const {
    const std::int64_t begin = std::max(places_[i].start, partition * rank);
    const std::int64_t end = std::min(places_[i].start + places_[i].count, partition * (rank + 1));
    return std::max<std::int64_t>(0, end - begin);
  }
  /// The first rank that has a piece of parameter i.
  std::int64_t first_rank(std::size_t i) const { return places_[i].start / partition; }
  bool is_own(std::size_t i) const { return std::find(own.begin(), own.end(), i) != own.end(); }

  std::int64_t total = 0;        // of the parameters
  std::int64_t flat_count = 0;   // with padding
  std::int64_t partition = 0;    // of one rank
  std::vector<std::size_t> own;  // parameters with a piece in the own part, in the flat order

 private:
  struct Place {
    std::int64_t start = 0, count = 0;
  };
  std::vector<Place> places_;
};

}  // namespace shardfit::program
