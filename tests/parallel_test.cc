#include "base/parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

TEST_CASE("work in parallel: every piece once, the first failure told after all are done") {
  std::vector<int> calls(1000, 0);
  shardfit::in_parallel(calls.size(), [&](std::size_t i) { ++calls[i]; });
  CHECK(calls == std::vector<int>(1000, 1));
  shardfit::in_parallel(0, [](std::size_t) { FAIL("nothing to do"); });
  std::atomic<int> done{0};
  const auto failing = [&](std::size_t i) {
    ++done;
    if (i % 7 == 3) throw std::runtime_error(std::to_string(i));
  };
  CHECK_THROWS_WITH(shardfit::in_parallel(100, failing), "3");
  CHECK(done == 100);
}
