#include "exact_readings.h"
#include "validate/compare.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "spec/reader.h"

using namespace shardfit;

namespace {

const std::string data = std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/";

struct Count {
  std::int64_t readings = 0, allocated_equal = 0, reserved_equal = 0, within_half_percent = 0;
};

std::map<std::string, Count> count_equal(const std::vector<validate::CaseResult>& results) {
  std::map<std::string, Count> counts;
  for (const auto& result : results) {
    for (const auto& row : result.rows) {
      Count& c = counts[row.family];
      const bool equal = row.measured == row.predicted;
      if (row.counter == "allocated_bytes") {
        ++c.readings;
        c.allocated_equal += equal;
        c.within_half_percent += row.relative_error() <= 0.005 && row.relative_error() >= -0.005;
      } else {
        c.reserved_equal += equal;
      }
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("exact readings: no family has fewer predictions equal to the byte than before") {
  const auto counts = count_equal(validate::predict(validate::read_cases(data + "plain.yaml")));
  Diagnostics faults;
  const spec::Node floor = spec::read_file(data + "floor.yaml", faults);
  faults.throw_if_any();
  for (const spec::Node& family : floor.children) {
    CAPTURE(family.key);
    REQUIRE(counts.count(family.key) == 1);
    const Count& c = counts.at(family.key);
    const auto least = [&](const char* key) {
      const spec::Node* node = family.child(key);
      REQUIRE(node != nullptr);
      return std::stoll(node->text);
    };
    CHECK(c.readings == least("readings"));
    CHECK(c.allocated_equal >= least("allocated_equal"));
    CHECK(c.reserved_equal >= least("reserved_equal"));
    CHECK(c.within_half_percent >= least("within_half_percent"));
  }
}

TEST_CASE(
    "exact readings: runs that end out of memory fail in the stated phase asking the stated "
    "bytes") {
  int failing = 0;
  for (const auto& result : validate::predict(validate::read_cases(data + "plain.yaml"))) {
    if (!result.skipped.empty() || !result.ends_out_of_memory) continue;
    CAPTURE(result.id);
    CAPTURE(result.predicted_outcome);
    CHECK(result.outcome_right);
    ++failing;
  }
  CHECK(failing > 0);
}

TEST_CASE("exact readings: small programs in unusual shapes are equal to the byte") {
  test::check_exact("shapes.yaml", 23);
}

TEST_CASE(
    "exact readings: torchtitan's Trainer is equal to the byte under fully_shard, with tensor "
    "ranks too") {
  test::check_exact("torchtitan.yaml", 13, 24);
}

TEST_CASE(
    "exact readings: DataParallel is equal to the byte on every GPU, in plain loops and in the "
    "Trainer") {
  test::check_exact("data_parallel.yaml", 22);
}

TEST_CASE("exact readings: stages of torchtitan's pipelines are equal to the byte") {
  test::check_exact("torchtitan_pipeline.yaml", 11, 20);
}

TEST_CASE("predictions do not read what was measured") {
  auto cases = validate::read_cases(data + "plain.yaml");
  cases.resize(3);
  auto blind = cases;
  for (auto& c : blind) {
    for (auto& reading : c.readings) reading.measured = 1;
    c.ends_out_of_memory = !c.ends_out_of_memory;
  }
  const auto seen = validate::predict(cases);
  const auto unseen = validate::predict(blind);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    REQUIRE(seen[i].rows.size() == unseen[i].rows.size());
    for (std::size_t k = 0; k < seen[i].rows.size(); ++k) {
      CHECK(seen[i].rows[k].predicted == unseen[i].rows[k].predicted);
    }
  }
}
