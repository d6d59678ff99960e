// Offsets for buffers with lifetimes: valid, equal to all placements of small instances.
#include "partition/offsets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

/// Every order, each buffer at its lowest free place: the order of offsets of a best placement is
/// among them.
std::int64_t brute_force(const BufferInstance& instance) {
  const std::vector<BufferInstance::Buffer>& b = instance.buffers;
  std::vector<int> order(b.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  do {
    std::vector<std::int64_t> offsets(b.size(), -1);
    std::int64_t peak = 0;
    for (int x : order) {
      std::int64_t at = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t y = 0; y < b.size(); ++y) {
          if (offsets[y] < 0 || b[x].lower >= b[y].upper || b[y].lower >= b[x].upper) continue;
          if (at < offsets[y] + b[y].size && offsets[y] < at + b[x].size) {
            at = offsets[y] + b[y].size;
            moved = true;
          }
        }
      }
      offsets[x] = at;
      peak = std::max(peak, at + b[x].size);
    }
    best = std::min(best, peak);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

}  // namespace

TEST_CASE("buffers of random small instances take what the best placement takes") {
  std::mt19937 random(4);
  for (unsigned seed = 0; seed < test::fuzz_rounds(400); ++seed) {
    CAPTURE(seed);
    BufferInstance instance;
    for (int n = 1 + static_cast<int>(random() % 7), i = 0; i < n; ++i) {
      const std::int64_t lower = static_cast<std::int64_t>(random() % 8);
      instance.buffers.push_back({std::to_string(i), lower,
                                  lower + 1 + static_cast<std::int64_t>(random() % 5),
                                  1 + static_cast<std::int64_t>(random() % 6)});
    }
    OffsetResult r = assign_offsets(instance, {});
    CHECK(check_offsets(instance, r.offsets) == r.peak);
    CHECK(r.proven);
    CHECK(r.peak == brute_force(instance));
  }
}

TEST_CASE("an instance cut short by its steps keeps a valid placement and a true bound") {
  BufferInstance instance = read_buffers(
      spec::read_source(SHARDFIT_SOURCE_DIR "/tests/data/solver/minimalloc/E.1048576.csv"));
  OffsetOptions options;
  options.most_steps = 2000;
  OffsetResult r = assign_offsets(instance, options);
  CHECK(check_offsets(instance, r.offsets) == r.peak);
  CHECK(r.lower_bound == 1048576);
  CHECK(r.peak >= r.lower_bound);
  CHECK_FALSE(r.proven);
  CHECK(r.gap ==
        doctest::Approx(static_cast<double>(r.peak - 1048576) / static_cast<double>(r.peak)));
  CHECK(r.gap < 0.3);
}

TEST_CASE("minimalloc: B, F and G fit in the peak of what lives together") {
  // A and I take seconds; partition_bench has them, and E, which stays open.
  for (const char* name : {"B", "F", "G"}) {
    CAPTURE(name);
    BufferInstance instance = read_buffers(spec::read_source(
        std::string(SHARDFIT_SOURCE_DIR "/tests/data/solver/minimalloc/") + name + ".1048576.csv"));
    OffsetResult r = assign_offsets(instance, {});
    CHECK(check_offsets(instance, r.offsets) == 1048576);
    CHECK(r.peak == *instance.capacity);
    CHECK(r.proven);
  }
}

TEST_CASE("overlapping offsets are found") {
  BufferInstance instance;
  instance.buffers = {{"a", 0, 4, 10}, {"b", 3, 6, 10}, {"c", 6, 8, 10}};
  CHECK(check_offsets(instance, {0, 10, 0}) == 20);
  CHECK(check_offsets(instance, {0, 9, 0}) == -1);
  CHECK(check_offsets(instance, {-1, 10, 0}) == -1);
}
