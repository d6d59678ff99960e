// What a run says beyond its own capacity, on random programs.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "run/memory_clock.h"
#include "run/observe.h"
#include "support.h"

using namespace shardfit;
using run::RunResult;

namespace {

constexpr std::int64_t mib = 1 << 20;

/// Below `n`.
std::int64_t draw(std::mt19937_64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

std::int64_t random_bytes(std::mt19937_64& random) {
  constexpr std::int64_t most[] = {4000, 2 * mib, 12 * mib, 70 * mib};
  return 1 + draw(random, most[draw(random, 4)]);
}

/// Allocations and releases in no order, on two streams, with phases and a cache emptied at times.
Program random_program(std::mt19937_64& random) {
  Program program;
  program.modules = {""};
  std::vector<std::uint32_t> live;
  for (int i = 0; i < 400; ++i) {
    const std::int64_t what = draw(random, 100);
    if (what < 2) {
      program.phases.push_back({"part", 1, false});
      program.instructions.push_back(
          {Action::phase, 0, static_cast<std::uint32_t>(program.phases.size() - 1)});
    } else if (what == 2) {
      program.instructions.push_back({Action::empty_cache, 0, 0});
    } else if (what < 52 || live.empty()) {
      StorageInfo storage;
      storage.bytes = random_bytes(random);
      storage.category = static_cast<Category>(draw(random, category_count));
      program.storages.push_back(storage);
      live.push_back(static_cast<std::uint32_t>(program.storages.size() - 1));
      const auto stream = static_cast<std::uint8_t>(draw(random, 8) == 0);
      program.instructions.push_back({Action::allocate, stream, live.back()});
      if (draw(random, 16) == 0) {
        program.instructions.push_back({Action::record_stream, 2, live.back()});
      }
    } else {
      const auto at =
          static_cast<std::size_t>(draw(random, static_cast<std::int64_t>(live.size())));
      program.instructions.push_back({Action::release, 0, live[at]});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return program;
}

bool same(const RunResult& a, const RunResult& b) {
  const auto reading = [](const run::PhaseReading& x, const run::PhaseReading& y) {
    return x.allocated == y.allocated && x.reserved == y.reserved && x.categories == y.categories &&
           x.peak_instruction == y.peak_instruction && x.peak_storage == y.peak_storage;
  };
  if (a.failure.has_value() != b.failure.has_value()) return false;
  if (a.failure &&
      (a.failure->storage != b.failure->storage || a.failure->allocated != b.failure->allocated ||
       a.failure->reserved != b.failure->reserved)) {
    return false;
  }
  return a.retries == b.retries && a.phases.size() == b.phases.size() &&
         std::equal(a.phases.begin(), a.phases.end(), b.phases.begin(), reading);
}

RunResult run_at(const Program& program, std::int64_t capacity,
                 const run::AllocatorSettings& settings) {
  constexpr std::int64_t context = 5 * mib;
  return run::run_program(program, {capacity + context, context, settings});
}

}  // namespace

TEST_CASE("a run is the same at every capacity it says it holds for, mostly another just outside") {
  int outside = 0, others = 0;  // where the driver answers otherwise the sums may still be equal
  std::mt19937_64 random(7);
  for (unsigned round = 0; round < test::fuzz_rounds(60); ++round) {
    const Program program = random_program(random);
    run::AllocatorSettings settings;
    if (round % 3 == 1) settings.expandable_segments = true;
    if (round % 3 == 2) settings.max_split_size = 20 * mib;
    const std::int64_t reserved = run_at(program, 1LL << 40, settings).reserved_peak;
    for (int tried = 0; tried < 6; ++tried) {
      const std::int64_t capacity = draw(random, reserved + reserved / 8 + mib);
      const RunResult one = run_at(program, capacity, settings);
      const run::CapacityRange range = one.same_capacities;
      CHECK(same(one, run_at(program, capacity, settings)));
      // Ranges of expandable segments leave out what their address space may decide.
      if (!settings.expandable_segments) {
        REQUIRE(range.holds(capacity));
        if (range.from > 0) {
          ++outside;
          others += !same(one, run_at(program, range.from - 1, settings));
        }
      } else if (!range.holds(capacity)) {
        continue;
      }
      CHECK(same(one, run_at(program, range.from, settings)));
      if (range.below > (1LL << 45)) continue;
      CHECK(same(one, run_at(program, range.below - 1, settings)));
      ++outside;
      others += !same(one, run_at(program, range.below, settings));
    }
  }
  CHECK(outside > 100);
  CHECK(4 * others > 3 * outside);
}

TEST_CASE("a run under shares of the total holds for no other capacity") {
  std::mt19937_64 random(3);
  const Program program = random_program(random);
  run::AllocatorSettings settings;
  settings.per_process_memory_fraction = 0.5;
  const run::CapacityRange range = run_at(program, 1LL << 34, settings).same_capacities;
  CHECK(range.from >= range.below);
}

TEST_CASE(
    "what is asked for at peaks is no more than is asked for, and no capacity below it runs") {
  std::mt19937_64 random(5);
  unsigned none = 0;  // what is freed again before the first mark is in no phase
  for (unsigned round = 0; round < test::fuzz_rounds(30); ++round) {
    const Program program = random_program(random);
    const RunResult result = run::run_program(program, {});
    std::int64_t most = 0;
    for (const run::RequestedPeak& peak : run::requested_peaks(program)) {
      most = std::max(most, peak.bytes);
    }
    const std::int64_t asked = run::requested_at_peaks(result);
    none += asked == 0;
    CHECK(asked <= most);
    CHECK(run::least_capacity(program, {}, false) >= asked);
  }
  CHECK(5 * none < test::fuzz_rounds(30));
}

TEST_CASE("the least capacity is enough, and two MiB less are not") {
  std::mt19937_64 random(11);
  for (unsigned round = 0; round < test::fuzz_rounds(30); ++round) {
    const Program program = random_program(random);
    run::RunLimits limits;
    limits.settings.expandable_segments = round % 2 == 1;
    const bool without_retry = round % 3 == 0;
    const std::int64_t least = run::least_capacity(program, limits, without_retry);
    const auto does = [&](std::int64_t capacity) {
      limits.total = capacity;
      const RunResult result = run::run_program(program, limits);
      return !result.failure && (!without_retry || result.retries == 0);
    };
    CHECK(does(least));
    CHECK_FALSE(does(least - 2 * mib));
    // It agrees with what is known of another.
    run::RunLimits none = limits;
    none.total = run::CachingAllocator::largest_total;
    const RunResult unlimited = run::run_program(program, none);
    const std::int64_t other = least / 2 + static_cast<std::int64_t>(random() % (2 * mib)) +
                               static_cast<std::int64_t>(random() % 64) * (least / 64);
    const bool runs = does(other);
    const std::int64_t agreed = run::least_capacity(program, none, without_retry, unlimited,
                                                    run::KnownCapacity{other, runs});
    CHECK((agreed <= other) == runs);
    CHECK(does(agreed));
  }
}

TEST_CASE("the least capacity on a card is what may be left of it, whatever else is in use there") {
  std::mt19937_64 random(12);
  for (unsigned round = 0; round < test::fuzz_rounds(30); ++round) {
    const Program program = random_program(random);
    run::RunLimits limits;
    limits.settings.expandable_segments = round % 2 == 1;
    const RunResult unlimited = run::run_program(program, limits);
    const std::int64_t anywhere = run::least_capacity(program, limits, false, unlimited);
    limits.total = 3 * anywhere;
    limits.context = static_cast<std::int64_t>(random() % 100) * mib;
    const std::int64_t least = run::least_capacity(program, limits, false, unlimited);
    const auto does = [&](std::int64_t capacity) {
      run::RunLimits card = limits;
      card.context = limits.total - capacity;
      return !run::run_program(program, card).failure;
    };
    CHECK(does(least));
    CHECK_FALSE(does(least - 2 * mib));
    // Address space of expandable segments alone goes by the card's size.
    if (!limits.settings.expandable_segments) CHECK(least == anywhere);
  }
}
