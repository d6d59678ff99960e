#include "search/verdict.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "run/observe.h"

using namespace shardfit;
using search::Verdict;

namespace {

constexpr std::int64_t mib = 1 << 20;

/// Programs in one line each: sizes are allocated, names end phases.
class Builder {
 public:
  std::uint32_t allocate(std::int64_t bytes, Category category) {
    StorageInfo storage;
    storage.bytes = bytes;
    storage.category = category;
    storage.kind = "test";
    program.storages.push_back(storage);
    const auto id = static_cast<std::uint32_t>(program.storages.size() - 1);
    program.instructions.push_back({Action::allocate, 0, id});
    return id;
  }
  void release(std::uint32_t id) { program.instructions.push_back({Action::release, 0, id}); }
  void mark(const char* name, int step, bool live = false) {
    program.phases.push_back({name, step, live});
    program.instructions.push_back(
        {Action::phase, 0, static_cast<std::uint32_t>(program.phases.size() - 1)});
  }
  void begin_step() { program.instructions.push_back({Action::reset_peaks, 0, 0}); }
  Program program;
};

/// 40 MiB of parameters, 101 MiB of activations for a while.
Program small_program() {
  Builder b;
  b.program.modules = {""};
  b.allocate(40 * mib, Category::parameter);
  b.mark("loaded", 0, true);
  b.begin_step();
  const auto first = b.allocate(64 * mib, Category::activation);
  const auto second = b.allocate(37 * mib - 100, Category::activation);
  b.mark("forward", 1);
  b.release(first);
  b.release(second);
  b.mark("backward", 1);
  b.mark("between_steps", 1, true);
  return std::move(b.program);
}

/// A block of 64 MiB is cached when 100 MiB are asked for.
Program program_with_cache() {
  Builder b;
  b.program.modules = {""};
  const auto first = b.allocate(64 * mib, Category::activation);
  b.release(first);
  b.mark("forward", 1);
  b.allocate(100 * mib, Category::temporary);
  b.mark("backward", 1);
  return std::move(b.program);
}

search::Card card(std::int64_t usable) { return {usable, {10 * mib, 30 * mib, "made up"}, {}, {}}; }

search::Accuracy exact_but_for(double high) {
  search::Accuracy accuracy;
  accuracy.low = -0.01;
  accuracy.high = high;
  return accuracy;
}

}  // namespace

TEST_CASE("a program fits at exactly the budget and not at one byte less") {
  const Program program = small_program();
  const std::int64_t needed = run::least_capacity(program, {}, true);
  CHECK(needed == 142 * mib);
  const auto at = [&](std::int64_t usable) {
    return search::judge(program, card(usable), {}, exact_but_for(0.0));
  };
  // The context's upper end decides between fits and tight, the middle between tight and not.
  CHECK(at(needed + 30 * mib).verdict == Verdict::fits);
  CHECK(at(needed + 30 * mib - 1).verdict == Verdict::tight);
  CHECK(at(needed + 20 * mib).verdict == Verdict::tight);
  CHECK(at(needed + 20 * mib).headroom() == 0);
  const search::Judgement less = at(needed + 20 * mib - 1);
  CHECK(less.verdict == Verdict::does_not_fit);
  CHECK(less.headroom() == -1);
  REQUIRE(less.limited.failure);
  CHECK(less.limited.failure->phase == "forward");
  CHECK(less.reason.find("CUDA out of memory. Tried to allocate 38.00 MiB") != std::string::npos);
}

TEST_CASE("the error of measured cases moves the gate by its share of the peak") {
  const Program program = small_program();
  const std::int64_t needed = run::least_capacity(program, {}, true);
  const search::Judgement judged =
      search::judge(program, card(needed + 30 * mib), {}, exact_but_for(0.05));
  CHECK(judged.verdict == Verdict::tight);
  CHECK(judged.high > judged.low);
  CHECK(judged.high - judged.unlimited.allocated_peak ==
        (judged.unlimited.allocated_peak + 19) / 20);
}

TEST_CASE("a run that has to give cached blocks back is tight, however much the interval leaves") {
  const Program program = program_with_cache();
  const std::int64_t with_retry = run::least_capacity(program, {}, false);
  const std::int64_t without = run::least_capacity(program, {}, true);
  CHECK(with_retry == 100 * mib);
  CHECK(without == 164 * mib);
  const auto verdict = [&](std::int64_t budget) {
    return search::judge(program, card(budget + 20 * mib), {}, exact_but_for(0.0)).verdict;
  };
  CHECK(verdict(without + 10 * mib) == Verdict::fits);
  CHECK(verdict(without - 1) == Verdict::tight);
  CHECK(verdict(with_retry) == Verdict::tight);
  CHECK(verdict(with_retry - 1) == Verdict::does_not_fit);
}

TEST_CASE("a census sums to what the allocator handed out, and its categories to the census") {
  const Program program = small_program();
  const run::RunResult result = run::run_program(program, {});
  std::int64_t highest = 0;
  for (const run::PhaseReading& phase : result.phases) {
    if (phase.live) continue;
    if (phase.peak_instruction < 0) continue;
    const run::Census census = run::live_after(program, result, phase.peak_instruction);
    CHECK(census.allocated == phase.allocated);
    std::int64_t requested = 0, allocated = 0;
    for (int c = 0; c < category_count; ++c) {
      requested += census.requested_by[static_cast<std::size_t>(c)];
      allocated += census.allocated_by[static_cast<std::size_t>(c)];
    }
    CHECK(requested == census.requested);
    CHECK(allocated == census.allocated);
    highest = std::max(highest, census.allocated);
  }
  CHECK(highest == result.allocated_peak);
  CHECK(highest > 140 * mib);
}

TEST_CASE("the curve of a step reaches the step's peak") {
  const Program program = small_program();
  const run::RunResult result = run::run_program(program, {});
  const run::Curve curve = run::memory_curve(program, result, 1, 20);
  REQUIRE(!curve.allocated.empty());
  CHECK(*std::max_element(curve.allocated.begin(), curve.allocated.end()) == result.allocated_peak);
}

TEST_CASE("the curve of a step is no wider than asked, however many phases it has") {
  const Program program = small_program();
  const run::RunResult result = run::run_program(program, {});
  for (const int columns : {1, 2, 3, 5, 8, 13, 20, 66}) {
    CAPTURE(columns);
    const run::Curve curve = run::memory_curve(program, result, 1, columns);
    REQUIRE(!curve.allocated.empty());
    CHECK(curve.allocated.size() == curve.phase.size());
    CHECK(curve.allocated.size() <= static_cast<std::size_t>(columns));
    CHECK(*std::max_element(curve.allocated.begin(), curve.allocated.end()) ==
          result.allocated_peak);
  }
}

TEST_CASE("every framework with a profile has an interval of some width for every task") {
  for (const char* framework : {"plain-pytorch", "hf-trainer", "nobody"}) {
    const search::Accuracy accuracy = search::accuracy_of(framework, "full");
    CAPTURE(framework);
    CHECK(accuracy.low < 0);
    CHECK(accuracy.high > 0);
    CHECK(!accuracy.source.empty());
  }
  const search::Context known = search::context_of("9.0");
  CHECK(known.low < known.high);
  CHECK(search::context_of("7.5").high > known.high);
}
