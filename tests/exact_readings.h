#pragma once
// Measured cases whose every reading must be predicted to the byte.

#include <doctest/doctest.h>

#include <string>

#include "validate/compare.h"

namespace shardfit::test {

/// Checks all cases of a file of tests/data/validate; none may be skipped. `readings`: of each
/// case, where all have as many.
inline void check_exact(const std::string& file, std::size_t least_cases,
                        std::size_t readings = 0) {
  const auto results =
      validate::predict(validate::read_cases(SHARDFIT_SOURCE_DIR "/tests/data/validate/" + file));
  CHECK(results.size() >= least_cases);
  for (const auto& result : results) {
    CAPTURE(result.id);
    CHECK(result.skipped == "");
    CHECK_FALSE(result.rows.empty());
    if (readings > 0) CHECK(result.rows.size() == readings);
    for (const auto& row : result.rows) {
      CAPTURE(row.phase);
      CAPTURE(row.counter);
      CHECK(row.predicted == row.measured);
    }
  }
}

}  // namespace shardfit::test
