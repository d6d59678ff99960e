// A replay that leaves out passes before which the allocator stands as it stood before is what a
// whole one is.
#include "run/recurrence.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "model_support.h"
#include "run/observe.h"
#include "run/run.h"

using namespace shardfit;

namespace {

constexpr std::int64_t mib = 1 << 20;

Program without_repeats(Program program) {
  program.repeats.clear();
  return program;
}

bool same_reading(const run::PhaseReading& a, const run::PhaseReading& b) {
  return a.name == b.name && a.step == b.step && a.live == b.live && a.allocated == b.allocated &&
         a.reserved == b.reserved && a.peak_instruction == b.peak_instruction &&
         a.categories == b.categories && a.peak_storage == b.peak_storage;
}

void check_same(const Program& program, const run::RunLimits& limits) {
  const run::RunResult left_out = run::run_program(program, limits);
  const run::RunResult whole = run::run_program(without_repeats(program), limits);
  REQUIRE(left_out.phases.size() == whole.phases.size());
  bool same = true;
  for (std::size_t i = 0; i < whole.phases.size(); ++i) {
    same = same && same_reading(left_out.phases[i], whole.phases[i]);
  }
  CHECK(same);
  CHECK(left_out.allocated_peak == whole.allocated_peak);
  CHECK(left_out.reserved_peak == whole.reserved_peak);
  CHECK(left_out.retries == whole.retries);
  CHECK(*left_out.block_units == *whole.block_units);
  CHECK(left_out.same_capacities.from == whole.same_capacities.from);
  CHECK(left_out.same_capacities.below == whole.same_capacities.below);
  REQUIRE(left_out.failure.has_value() == whole.failure.has_value());
  if (!whole.failure) return;
  CHECK(left_out.failure->error.text() == whole.failure->error.text());
  CHECK(left_out.failure->phase == whole.failure->phase);
  CHECK(left_out.failure->step == whole.failure->step);
  CHECK(left_out.failure->storage == whole.failure->storage);
}

/// Passes that a replay without a limit leaves out.
std::int64_t left_out(const Program& program) {
  run::CachingAllocator allocator(run::CachingAllocator::largest_total, 0);
  run::Placement placement(program);
  run::Recurrence recurrence(program);
  std::int64_t passes = 0;
  for (std::size_t at = 0; at < program.instructions.size(); ++at) {
    while (at == recurrence.next()) {
      const run::Recurrence::Skip skip = recurrence.look(allocator, placement);
      if (skip.passes == 0) break;
      passes += skip.passes;
      placement.move_on(skip.of->floor, skip.names());
      at += skip.instructions();
    }
    if (at >= program.instructions.size()) break;
    const Instruction& i = program.instructions[at];
    if (i.action == Action::allocate) {
      placement.put(i.id, allocator.allocate(program.storages[i.id].bytes, i.stream));
    } else if (i.action == Action::release) {
      allocator.free(placement.take(i.id));
    }
  }
  return passes;
}

/// A storage of a pass: its bytes, where in the pass it is made, after how many passes and where in
/// that pass it is freed.
struct Made {
  std::int64_t bytes = 0;
  std::uint32_t lag = 0;
  double made = 0, freed = 0;
};

/// So many equal passes at random, after some that are not yet like them, and a last one.
Program random_passes(std::mt19937& random, std::uint32_t passes) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Made> made(static_cast<std::size_t>(1 + below(12)));
  for (Made& one : made) {
    const std::int64_t unit = below(3) == 0 ? 512 : mib;
    one.bytes = (1 + below(40)) * unit;
    one.lag = below(3) == 0 ? static_cast<std::uint32_t>(1 + below(2)) : 0;
    one.made = (1 + below(1000)) / 1000.0;
    one.freed = one.lag > 0 ? below(1000) / 1000.0 : one.made + below(1000) / 1000.0 + 1e-6;
  }
  std::sort(made.begin(), made.end(), [](const Made& a, const Made& b) { return a.made < b.made; });
  const auto marks = static_cast<std::size_t>(below(3));
  constexpr std::uint32_t first = 2;  // by then nothing is missing that a pass frees
  Program program;
  program.modules = {""};
  const auto storages = static_cast<std::uint32_t>(made.size());
  const auto storage = [&](std::int64_t bytes, Category category) {
    program.storages.push_back({bytes, category, 0, false, "made", 0});
  };
  const auto mark = [&](const char* name) {
    program.instructions.push_back(
        {Action::phase, 0, static_cast<std::uint32_t>(program.phases.size())});
    program.phases.push_back({name, 1, false});
  };
  for (int i = 0; i < 3; ++i) {
    storage((1 + below(30)) * mib, Category::parameter);
    program.instructions.push_back(
        {Action::allocate, 0, static_cast<std::uint32_t>(program.storages.size() - 1)});
  }
  const auto floor = static_cast<std::uint32_t>(program.storages.size());
  program.instructions.push_back({Action::reset_peaks, 0, 0});
  Repeat repeat;
  for (std::uint32_t pass = 0; pass < first + passes; ++pass) {
    if (pass == first) repeat.first_instruction = program.instructions.size();
    if (pass == first + 1) repeat.length = program.instructions.size() - repeat.first_instruction;
    std::vector<std::pair<double, Instruction>> order;
    const std::uint32_t own = floor + pass * storages;
    for (std::uint32_t s = 0; s < storages; ++s) {
      const Made& one = made[s];
      storage(one.bytes, s % 2 ? Category::activation : Category::temporary);
      order.push_back({one.made, {Action::allocate, 0, own + s}});
      if (pass < one.lag) continue;
      order.push_back({one.freed, {Action::release, 0, own + s - one.lag * storages}});
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      program.instructions.push_back(order[i].second);
      if (marks > 0 && i == order.size() / (marks + 1)) mark("forward");
    }
    if (marks > 1) mark("backward");
  }
  mark("step");
  repeat.passes = passes;
  repeat.storages = storages;
  repeat.floor = floor;
  program.repeats.push_back(repeat);
  return program;
}

}  // namespace

TEST_CASE("random passes that are left out leave what running them leaves") {
  std::mt19937 random(20261201);
  std::int64_t all = 0;
  const unsigned rounds = test::fuzz_rounds(150);
  for (unsigned round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const Program program = random_passes(random, 4 + static_cast<std::uint32_t>(random() % 40));
    all += left_out(program);
    run::RunLimits limits;
    check_same(program, limits);
    const run::RunResult free = run::run_program(program, limits);
    for (const std::int64_t less : {0, 2, 6, 20}) {
      limits.total = free.reserved_peak - less * mib;
      if (limits.total > 0) check_same(program, limits);
    }
    limits.total = free.reserved_peak;
    limits.settings = run::parse_allocator_settings("expandable_segments:True", {});
    check_same(program, limits);
    limits.settings = {};
    CHECK(run::least_capacity(program, limits, round % 2 == 0) ==
          run::least_capacity(without_repeats(program), limits, round % 2 == 0));
  }
  CHECK(all > 5 * rounds);  // most of what can be left out is
}

TEST_CASE("accumulated micro-batches are replayed until the allocator stands as before") {
  spec::ModelSpec model = spec::read_model("llama-3.2-1b");
  test::set_number(model, "num_hidden_layers", 3);
  for (const char* framework : {"plain-pytorch", "hf-trainer"}) {
    for (const auto recompute : {program::Recompute::none, program::Recompute::full}) {
      CAPTURE(framework);
      CAPTURE(static_cast<int>(recompute));
      program::TrainingJob job;
      job.framework = framework;
      job.program = job.framework == "hf-trainer" ? "trainer-1" : "plain-loop-1";
      job.sequence = 640;
      job.micro_batch = 3;
      job.accumulation = 40;
      job.parameters = DType::f32;
      job.autocast = DType::bf16;
      job.recompute = recompute;
      const Program program = program::Lowering(model, framework).lower(job);
      REQUIRE(program.repeats.size() == 3);  // one a step, in copied steps, too
      CHECK(left_out(program) > 60);
      run::RunLimits limits;
      check_same(program, limits);
      const std::int64_t least = run::least_capacity(program, limits, false);
      CHECK(least == run::least_capacity(without_repeats(program), limits, false));
      for (const std::int64_t pages : {-1, 0, 8}) {
        limits.total = least + pages * 2 * mib;
        check_same(program, limits);
      }
    }
  }
}
