// Work that is given up: the clock, the flag, and what asks them.

#include "base/stop.h"

#include <doctest/doctest.h>

#include <limits>

#include "program/training.h"
#include "run/observe.h"
#include "spec/model_spec.h"

using namespace shardfit;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

program::TrainingJob job_of(const StopCheck* stop) {
  program::TrainingJob job;
  job.sequence = 64;
  job.stop = stop;
  return job;
}

}  // namespace

TEST_CASE("it is time to stop behind the deadline in CPU time, or once the flag is set") {
  volatile std::sig_atomic_t flag = 0;
  CHECK(StopCheck().why() == StopCheck::Why::no);
  CHECK(StopCheck(never, &flag).why() == StopCheck::Why::no);
  CHECK(StopCheck(cpu_seconds() + 1000, nullptr).why() == StopCheck::Why::no);
  CHECK(StopCheck(cpu_seconds() - 1e-6, nullptr).why() == StopCheck::Why::budget);
  flag = 1;
  CHECK(StopCheck(never, &flag).why() == StopCheck::Why::interrupt);
  CHECK_THROWS_AS(StopCheck(never, &flag).check(), Stopped);
  CHECK_NOTHROW(check(nullptr));
}

TEST_CASE("a program that is lowered, run or fitted into the least capacity can be given up") {
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json", {}),
      "plain-pytorch");
  volatile std::sig_atomic_t flag = 0;
  const StopCheck stop(never, &flag);
  const Program program = lowering.lower(job_of(&stop));
  CHECK(program.instructions.size() == lowering.lower(job_of(nullptr)).instructions.size());
  run::RunLimits limits;
  limits.stop = &stop;
  const std::int64_t least = run::least_capacity(program, limits, false);
  CHECK(least > 0);
  flag = 1;
  CHECK_THROWS_AS(lowering.lower(job_of(&stop)), Stopped);
  CHECK_THROWS_AS(run::run_program(program, limits), Stopped);
  CHECK_THROWS_AS(run::least_capacity(program, limits, false), Stopped);
  flag = 0;  // what was given up leaves nothing behind
  CHECK(lowering.lower(job_of(&stop)).instructions.size() == program.instructions.size());
  CHECK(run::least_capacity(program, limits, false) == least);
}

TEST_CASE("a pipeline's stage is given up between its passes") {
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json", {}), "megatron");
  volatile std::sig_atomic_t flag = 1;
  const StopCheck stop(never, &flag);
  program::TrainingJob job = job_of(&stop);
  job.framework = "megatron";
  job.program = "mcore-loop-1";
  job.megatron.emplace();
  CHECK_THROWS_AS(lowering.lower(job), Stopped);
}
