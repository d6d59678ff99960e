#include "run/memory_clock.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace shardfit;

namespace {

Program three_storages() {
  Program p;
  p.storages = {{100, Category::parameter}, {30, Category::activation}, {50, Category::temporary}};
  p.phases = {{"loaded", 0, true}, {"forward", 1, false}, {"backward", 1, false}};
  p.instructions = {{Action::allocate, 0, 0}, {Action::phase, 0, 0},   {Action::allocate, 0, 1},
                    {Action::allocate, 0, 2}, {Action::release, 0, 2}, {Action::phase, 0, 1},
                    {Action::release, 0, 1},  {Action::phase, 0, 2}};
  return p;
}

}  // namespace

TEST_CASE("memory clock: a phase's peak is the highest sum since the mark before, by category") {
  const auto peaks = run::requested_peaks(three_storages());
  REQUIRE(peaks.size() == 3);
  CHECK(peaks[0].bytes == 100);
  CHECK(peaks[1].bytes == 180);
  CHECK(peaks[1].instruction == 3);
  CHECK(peaks[1].categories[static_cast<int>(Category::temporary)] == 50);
  CHECK(peaks[2].bytes == 130);  // what was alive when it began
  CHECK(peaks[2].instruction == -1);
  for (const auto& peak : peaks) {
    CHECK(std::accumulate(peak.categories.begin(), peak.categories.end(), std::int64_t{0}) ==
          peak.bytes);
  }
}
