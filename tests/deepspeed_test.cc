// DeepSpeed's engine: readings of the real one, and what its programs exchange.

#include <doctest/doctest.h>

#include <map>

#include "exact_readings.h"
#include "spec/model_spec.h"

using namespace shardfit;

namespace {

const std::string data = std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/";

Program lower(int stage, std::int64_t ranks, std::int64_t rank = 0) {
  program::TrainingJob job;
  job.framework = "deepspeed";
  job.program = "deepspeed-loop-1";
  job.implementation = program::Implementation::fused;
  job.sequence = 128;
  job.deepspeed = program::DeepSpeedJob{};
  job.deepspeed->stage = stage;
  job.deepspeed->ranks = ranks;
  job.deepspeed->rank = rank;
  const program::Lowering lowering(spec::read_model(data + "models/gpt2.json"), job.framework);
  return lowering.lower(job);
}

/// Bytes of each kind of exchange in the last of three steps.
std::map<CollectiveKind, std::int64_t> exchanged(const Program& program) {
  std::map<CollectiveKind, std::int64_t> bytes;
  int resets = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.action == Action::reset_peaks) ++resets;
    if (instruction.action != Action::collective || resets != 3) continue;
    const Collective& c = program.collectives[instruction.id];
    bytes[c.kind] += c.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("deepspeed: readings of stages 0 to 3 are equal to the byte") {
  test::check_exact("zero.yaml", 90);
}

TEST_CASE("deepspeed: stage 2 exchanges every gradient and every parameter once") {
  const Program program = lower(2, 4);
  const std::int64_t bytes = 2 * program.parameters_trainable;
  auto sums = exchanged(program);
  const std::int64_t padding = 2 * 2 * 4;
  CHECK(sums[CollectiveKind::all_gather] >= bytes);
  CHECK(sums[CollectiveKind::all_gather] < bytes + padding);
  CHECK(sums[CollectiveKind::all_reduce] >= bytes);
  CHECK(sums[CollectiveKind::all_reduce] < bytes + 64);
}

TEST_CASE("deepspeed: stage 3 scatters every gradient once and gathers what it uses") {
  const Program program = lower(3, 4);
  const std::int64_t bytes = 2 * program.parameters_trainable;
  auto sums = exchanged(program);
  CHECK(sums[CollectiveKind::reduce_scatter] >= bytes);
  CHECK(sums[CollectiveKind::reduce_scatter] < bytes + bytes / 1000);
  CHECK(sums[CollectiveKind::all_gather] >= bytes);
  CHECK(sums[CollectiveKind::all_gather] <= 3 * bytes);
}

TEST_CASE("deepspeed: one rank exchanges nothing") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    CHECK(lower(stage, 1).collectives.empty());
  }
}

TEST_CASE("deepspeed: every waited event has been recorded before") {
  for (int stage = 1; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program program = lower(stage, 2, 1);
    std::vector<bool> recorded(program.events, false);
    for (const Instruction& instruction : program.instructions) {
      if (instruction.action == Action::record_event) recorded[instruction.id] = true;
      const bool waits =
          instruction.action == Action::wait_event || instruction.action == Action::host_wait;
      if (waits) CHECK(recorded[instruction.id]);
    }
  }
}
