// transformers.Trainer's loop against real runs (tests/data/validate/trainer.yaml).
#include <doctest/doctest.h>

#include <string>

#include "validate/compare.h"

using namespace shardfit;

TEST_CASE("hf-trainer: allocated bytes of every phase are those of the real program") {
  const std::string path = std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/trainer.yaml";
  int phases = 0;
  for (const validate::CaseResult& result : validate::predict(validate::read_cases(path))) {
    CAPTURE(result.id);
    CHECK(result.skipped == "");
    for (const validate::Row& row : result.rows) {
      if (row.counter != "allocated_bytes") continue;
      CAPTURE(row.phase);
      CHECK(row.predicted == row.measured);
      ++phases;
    }
  }
  CHECK(phases >= 85);
}
