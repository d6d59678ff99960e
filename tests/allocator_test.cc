#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "run/allocator.h"
#include "run/free_blocks.h"
#include "support.h"

using namespace shardfit::run;

namespace {

/// Whole numbers below n, the same on every machine.
struct Random {
  explicit Random(unsigned seed) : engine(seed) {}
  unsigned operator()(std::size_t n) { return static_cast<unsigned>(engine() % n); }
  std::mt19937 engine;
};

constexpr std::int64_t mib = 1 << 20;

/// Sizes, addresses and counters of a layout agree with the counters.
void check_layout(const CachingAllocator& allocator) {
  const AllocatorLevels& now = allocator.stats().current;
  std::int64_t allocated = 0, active = 0, reserved = 0, requested = 0, segments = 0, end = -1;
  std::int64_t inactive_split = 0;
  for (const SegmentView& segment : allocator.layout()) {
    REQUIRE(segment.address >= end);
    end = segment.address + segment.size;
    std::int64_t sum = 0;
    bool free_before = false;
    for (const BlockView& block : segment.blocks) {
      REQUIRE(block.size > 0);
      REQUIRE(block.size % 512 == 0);
      const bool free = block.state == BlockState::free;
      REQUIRE_FALSE((free && free_before));  // neighbours are merged
      free_before = free;
      sum += block.size;
      if (block.state == BlockState::allocated) allocated += block.size;
      if (!free) active += block.size;
      if (!free) requested += block.requested;
      if (free && !segment.expandable && segment.blocks.size() > 1) inactive_split += block.size;
    }
    REQUIRE(sum == segment.size);
    reserved += segment.size;
    segments += segment.expandable ? 0 : 1;
  }
  REQUIRE(now.allocated == allocated);
  REQUIRE(now.active == active);
  REQUIRE(now.reserved == reserved);
  REQUIRE(now.requested == requested);
  REQUIRE(now.segments == segments);
  REQUIRE(now.inactive_split == inactive_split);
}

}  // namespace

TEST_CASE("a program fits at exactly the budget and not at one byte less") {
  const auto fits = [](std::int64_t total, std::int64_t context) {
    CachingAllocator allocator(total, context);
    const BlockHandle first = allocator.allocate(30 * mib);
    const BlockHandle second = allocator.allocate(14 * mib);
    allocator.free(first);
    allocator.free(second);
    return allocator.stats().ooms == 0;
  };
  CHECK(fits(44 * mib, 0));
  CHECK_FALSE(fits(44 * mib - 1, 0));
  CHECK(fits(50 * mib, 6 * mib));
  CHECK_FALSE(fits(50 * mib, 6 * mib + 1));
}

TEST_CASE("the fraction allows exactly its bytes") {
  CachingAllocator allocator(100 * mib, 0, {}, 0.5);
  CHECK(allocator.allocate(50 * mib) != no_block);
  CHECK(allocator.allocate(1) == no_block);
  allocator.set_fraction(0.52);
  CHECK(allocator.allocate(1) != no_block);
}

TEST_CASE("a retry gives back what is cached; a failure leaves everything usable") {
  CachingAllocator allocator(100 * mib, 0);
  const BlockHandle first = allocator.allocate(60 * mib);
  allocator.free(first);
  const BlockHandle second = allocator.allocate(80 * mib);
  CHECK(second != no_block);
  CHECK(allocator.stats().retries == 1);
  CHECK(allocator.stats().current.reserved == 80 * mib);
  CHECK(allocator.allocate(40 * mib) == no_block);
  CHECK(allocator.stats().ooms == 1);
  CHECK(allocator.out_of_memory().text() ==
        "CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 100.00 MiB "
        "of which 20.00 MiB is free. Including non-PyTorch memory, this process has 80.00 MiB "
        "memory in use. Of the allocated memory 80.00 MiB is allocated by PyTorch, and 0 bytes is "
        "reserved by PyTorch but unallocated.");
  CHECK(allocator.out_of_memory().requested == 40 * mib);
  allocator.free(second);
  CHECK(allocator.allocate(100 * mib) != no_block);
}

TEST_CASE("sizes in the error text: 1 GiB prints as 1024.00 MiB") {
  CHECK(size_text(0) == "0 bytes");
  CHECK(size_text(1024) == "1024 bytes");
  CHECK(size_text(1025) == "1.00 KiB");
  CHECK(size_text(mib) == "1024.00 KiB");
  CHECK(size_text(1 << 30) == "1024.00 MiB");
  CHECK(size_text((1LL << 30) + 1) == "1.00 GiB");
}

TEST_CASE("zero bytes hold nothing; bad calls are refused") {
  CachingAllocator allocator(100 * mib, 0);
  CHECK(allocator.allocate(0) == empty_block);
  allocator.free(empty_block);
  allocator.free(no_block);
  const BlockHandle block = allocator.allocate(1);
  allocator.free(block);
  CHECK_THROWS_AS(allocator.free(block), std::invalid_argument);
  CHECK_THROWS_AS(allocator.free(12345), std::invalid_argument);
  CHECK_THROWS_AS(allocator.record_stream(block, 1), std::invalid_argument);
  CHECK_THROWS_AS(allocator.allocate(-1), std::invalid_argument);
  CHECK_THROWS_AS(allocator.allocate(CachingAllocator::largest_request + 1), std::invalid_argument);
  CHECK_THROWS_AS(allocator.allocate(1, CachingAllocator::stream_limit), std::invalid_argument);
  CHECK_THROWS_AS(allocator.set_fraction(1.5), std::invalid_argument);
  CHECK_THROWS_AS(allocator.leave_pool(1), std::invalid_argument);
  CHECK_THROWS_AS(allocator.delete_pool(1), std::invalid_argument);
  CHECK_THROWS_AS(CachingAllocator(-1, 0), std::invalid_argument);
  CHECK_THROWS_AS(CachingAllocator(CachingAllocator::largest_total + 1, 0), std::invalid_argument);
  CHECK(allocator.allocate(CachingAllocator::largest_request) == no_block);
  check_layout(allocator);
}

TEST_CASE("the largest total is no limit in practice") {
  for (const char* settings : {"", "expandable_segments:True"}) {
    CachingAllocator allocator(CachingAllocator::largest_total, 0,
                               parse_allocator_settings(settings));
    for (int i = 0; i < 100; ++i) {
      REQUIRE(allocator.allocate(1LL << 40, static_cast<std::uint32_t>(i)) != no_block);
    }
    CHECK(allocator.stats().current.allocated == 100LL << 40);
    check_layout(allocator);
  }
}

TEST_CASE("free blocks: the answers of an ordered set, whatever comes") {
  for (unsigned seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    FreeBlocks blocks;
    std::set<FreeBlocks::Key> model;
    const std::size_t sizes = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 200 : 1 << 28;
    const std::size_t most = seed < 12 ? 40 : 4000;
    const auto draw = [&](std::size_t n) { return 512LL * (1 + random(n)); };
    const auto any = [&] {
      return std::next(model.begin(), static_cast<long>(random(model.size())));
    };
    for (std::uint32_t i = 0; i < 8000; ++i) {
      const FreeBlocks::Key key = FreeBlocks::key(draw(sizes), draw(1 << 30), i);
      const auto what = random(8);
      if (model.size() < most / 2 || (what < 3 && model.size() < most)) {
        blocks.insert(key);
        model.insert(key);
      } else {
        const auto victim = any();
        what < 6 ? blocks.replace(*victim, key) : blocks.erase(*victim);
        model.erase(victim);
        if (what < 6) model.insert(key);
      }
      const std::int64_t wanted = draw(sizes + 2);
      const auto expected = model.lower_bound(FreeBlocks::key(wanted, 0, 0));
      const auto value = [&](auto at) { return at == model.end() ? FreeBlocks::none : *at; };
      REQUIRE((blocks.best_fit(wanted) == value(expected)));
      if (expected != model.end()) {
        REQUIRE((blocks.after(*expected) == value(std::next(expected))));
      }
      const auto before = expected == model.begin() ? FreeBlocks::none : *std::prev(expected);
      REQUIRE((blocks.before(FreeBlocks::bound(wanted)) == before));
    }
    const std::vector<FreeBlocks::Key> keys = blocks.keys();
    CHECK(std::equal(keys.begin(), keys.end(), model.begin(), model.end()));
    CHECK((blocks.best_fit(CachingAllocator::largest_request) == FreeBlocks::none));
  }
}

namespace {

const char* const property_settings[] = {
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
    "expandable_segments:True,large_segment_size_mb:12,max_split_size_mb:40",
    "throw_on_cudamalloc_oom:True",
};

/// One random program: its calls, and what must hold after each.
void random_program(unsigned seed, const AllocatorSettings& settings) {
  Random random(seed);
  CachingAllocator allocator((200 + random(800)) * mib, random(3) * mib, settings);
  std::vector<BlockHandle> live;
  bool held = false, inside = false;
  for (int i = 0; i < 600; ++i) {
    const auto what = random(100);
    if (what < 50 || live.empty()) {
      const std::int64_t bytes = 1 + random(std::size_t{1} << (6 + random(21)));
      const BlockHandle block = allocator.allocate(bytes, random(3));
      if (block == no_block) continue;
      REQUIRE(allocator.requested_bytes(block) == bytes);
      REQUIRE(allocator.block_bytes(block) >= bytes);
      REQUIRE(std::find(live.begin(), live.end(), block) == live.end());
      live.push_back(block);
    } else if (what < 90) {
      const auto at = live.begin() + static_cast<long>(random(live.size()));
      allocator.free(*at);
      live.erase(at);
    } else if (what < 94) {
      allocator.record_stream(live[random(live.size())], random(3));
    } else if (what < 96) {
      held ? allocator.complete_events() : allocator.hold_events();
      held = !held;
    } else if (what < 98) {
      inside ? allocator.leave_pool(1) : allocator.enter_pool(1, seed % 2 == 0);
      inside = !inside;
    } else {
      allocator.empty_cache();
    }
    std::int64_t allocated = 0;
    for (const BlockHandle block : live) allocated += allocator.block_bytes(block);
    REQUIRE(allocator.stats().current.allocated == allocated);
    REQUIRE(allocator.stats().peak.allocated >= allocated);
    if (i % 7 == 0) check_layout(allocator);
  }
  if (inside) allocator.leave_pool(1);
  for (const BlockHandle block : live) allocator.free(block);
  allocator.empty_cache();
  check_layout(allocator);
  REQUIRE(allocator.stats().current.active == 0);
}

}  // namespace

TEST_CASE(
    "random programs: allocated is the sum of the blocks handed out, layouts are consistent") {
  for (unsigned seed = 0; seed < shardfit::test::fuzz_rounds(70); ++seed) {
    CAPTURE(seed);
    const char* text = property_settings[seed % std::size(property_settings)];
    CAPTURE(text);
    random_program(seed, parse_allocator_settings(text));
  }
}

TEST_CASE("same calls, same answers") {
  std::vector<AllocatorStats> stats;
  for (int run = 0; run < 2; ++run) {
    Random random(5);
    CachingAllocator allocator(300 * mib, 0);
    std::vector<BlockHandle> live;
    for (int i = 0; i < 500; ++i) {
      live.push_back(allocator.allocate(1 + random(20 * mib)));
      if (live.size() > 20) {
        allocator.free(live.front());
        live.erase(live.begin());
      }
    }
    stats.push_back(allocator.stats());
  }
  CHECK(stats[0] == stats[1]);
}
