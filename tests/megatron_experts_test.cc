// Mixtures of experts as Megatron-core runs them, spread over ranks or not.

#include <doctest/doctest.h>

#include "exact_readings.h"
#include "program/megatron.h"
#include "program/training.h"
#include "validate/cases.h"

using namespace shardfit;

namespace {

validate::Case case_of(const std::string& id) {
  for (validate::Case& c :
       validate::read_cases(SHARDFIT_SOURCE_DIR "/tests/data/validate/megatron_experts.yaml")) {
    if (c.id == id) return std::move(c);
  }
  throw std::runtime_error("no case " + id);
}

std::vector<program::DegreeFault> faults_of(const program::MegatronJob& megatron) {
  const validate::Case c = case_of("zero-mc-moe-ep2-dp4-r1");
  program::TrainingJob job = c.job;
  job.megatron = megatron;
  return program::Lowering(validate::model_of(c), job.framework).check(job);
}

}  // namespace

TEST_CASE(
    "exact readings: Megatron-core's experts over 1 to 8 ranks, every rank equal to the byte") {
  test::check_exact("megatron_experts.yaml", 27, 14);
}

TEST_CASE("experts are spread over data ranks, evenly") {
  program::MegatronJob job;
  job.data = 8;
  for (const std::int64_t fits : {1, 2, 4, 8}) {
    job.expert = fits;
    CHECK(faults_of(job).empty());
  }
  job.expert = 3;  // 8 experts
  REQUIRE(faults_of(job).size() == 1);
  CHECK(faults_of(job).front().key == "ep");
  CHECK(faults_of(job).front().nearest == 2);
  job.data = 2;
  job.expert = 4;
  REQUIRE(faults_of(job).size() == 1);
  CHECK(faults_of(job).front().message == "experts over 4 of 2 data ranks");
  job.tensor = 2;
  job.expert = 1;
  REQUIRE(faults_of(job).size() == 1);
  CHECK(faults_of(job).front().key == "tp");
}

TEST_CASE("ranks whose experts get more rows hold more") {
  validate::Case c = case_of("zero-mc-moe-ep4-dp4-uneven-r1");
  const program::Lowering lowering(validate::model_of(c), c.job.framework);
  const auto activations = [&](std::int64_t rank) {
    program::TrainingJob job = c.job;
    job.megatron->rank = rank;
    std::int64_t bytes = 0;
    for (const StorageInfo& storage : lowering.lower(job).storages) {
      if (storage.category == Category::activation) bytes += storage.bytes;
    }
    return bytes;
  };
  CHECK(activations(0) > activations(1));
  CHECK(activations(1) > activations(2));
  CHECK(activations(2) == activations(3));
}
