#include <doctest/doctest.h>

#include <random>
#include <string>

#include "run/allocator_settings.h"
#include "support.h"

using shardfit::run::AllocatorSettings;
using shardfit::run::parse_allocator_settings;
using shardfit::run::round_request;
using shardfit::run::SettingsError;

namespace {

/// Whole numbers below n, the same on every machine.
struct Random {
  explicit Random(unsigned seed) : engine(seed) {}
  unsigned operator()(std::size_t n) { return static_cast<unsigned>(engine() % n); }
  std::mt19937 engine;
};

constexpr std::int64_t mib = 1 << 20;

std::string refusal(const std::string& text) {
  try {
    parse_allocator_settings(text);
  } catch (const SettingsError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("allocator settings: every key of PyTorch 2.13 is known") {
  const AllocatorSettings settings = parse_allocator_settings(
      "backend:native, max_split_size_mb:128, max_non_split_rounding_mb:64,"
      "large_segment_size_mb:48, garbage_collection_threshold:0.8, expandable_segments:True,"
      "per_process_memory_fraction:0.5, throw_on_cudamalloc_oom:True,"
      "roundup_power2_divisions:[256:1,512:2,1024:4,>:8], pinned_use_cuda_host_register:True,"
      "pinned_num_register_threads:8, pinned_reserve_segment_size_mb:64,"
      "pinned_use_background_threads:False, pinned_max_round_threshold_mb:0,"
      "pinned_max_cached_size_mb:100, pinned_free_catch_all:False,"
      "release_lock_on_cudamalloc:True, graph_capture_record_stream_reuse:False");
  CHECK(settings.max_split_size == 128 * mib);
  CHECK(settings.max_non_split_rounding == 64 * mib);
  CHECK(settings.large_segment_size == 48 * mib);
  CHECK(settings.garbage_collection_threshold == 0.8);
  CHECK(settings.per_process_memory_fraction == 0.5);
  CHECK(settings.expandable_segments);
  CHECK(settings.throw_on_cudamalloc_oom);
  const std::array<std::uint8_t, 16> shifts{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3};
  CHECK(settings.roundup_shift == shifts);
}

TEST_CASE("allocator settings: an empty string is the default, a trailing comma is allowed") {
  CHECK(parse_allocator_settings("") == AllocatorSettings{});
  CHECK(parse_allocator_settings("max_split_size_mb : 64 ,").max_split_size == 64 * mib);
}

TEST_CASE("allocator settings: a new string resets what PyTorch resets and keeps the rest") {
  const AllocatorSettings before = parse_allocator_settings(
      "max_split_size_mb:100,max_non_split_rounding_mb:70,garbage_collection_threshold:0.5,"
      "roundup_power2_divisions:4,expandable_segments:True,large_segment_size_mb:64,"
      "throw_on_cudamalloc_oom:True");
  const AllocatorSettings after = parse_allocator_settings("pinned_free_catch_all:True", before);
  AllocatorSettings expected;
  expected.expandable_segments = true;
  expected.large_segment_size = 64 * mib;
  expected.max_non_split_rounding = 64 * mib;  // its default is the large segment size
  expected.throw_on_cudamalloc_oom = true;
  CHECK(after == expected);
}

TEST_CASE("allocator settings: the large segment size counts wherever it stands in the string") {
  CHECK(parse_allocator_settings("max_split_size_mb:12,large_segment_size_mb:12").max_split_size ==
        12 * mib);
  CHECK(refusal("max_split_size_mb:32,large_segment_size_mb:64") ==
        "position 19: found '32', expected a size in MiB of at least 64 (large_segment_size_mb)");
}

TEST_CASE("allocator settings: a refusal says where, what was found and what is expected") {
  CHECK(refusal("max_split_size_mb:19") ==
        "position 19: found '19', expected a size in MiB of at least 20 (large_segment_size_mb)");
  CHECK(refusal("expandable_segments:true") == "position 21: found 'true', expected True or False");
  CHECK(refusal("expandable_segments") ==
        "position 20: found the end, expected ':' after 'expandable_segments'");
  CHECK(refusal("garbage_collection_threshold:1.0") ==
        "position 30: found '1.0', expected a number above 0 and below 1");
  CHECK(refusal("roundup_power2_divisions:0") ==
        "position 26: found '0', expected a number of divisions that is a power of 2");
  CHECK(refusal("roundup_power2_divisions:[64:0]") == "");
  CHECK(refusal("roundup_power2_divisions:[3:8]") ==
        "position 27: found '3', expected '>' or a size in MiB that is a power of 2");
  CHECK(refusal("roundup_power2_divisions:[64:8") ==
        "position 31: found the end, expected ',' or ']'");
  CHECK(refusal("large_segment_size_mb:10") ==
        "position 23: found '10', expected a size in MiB above 10 (large_segment_size_mb)");
  CHECK(refusal("max_split_size_mb:64;expandable_segments:True") ==
        "position 19: found '64;expandable_segments', expected a size in MiB of at least 20 "
        "(large_segment_size_mb)");
  CHECK(refusal("max_split_size:64")
            .rfind("position 1: found 'max_split_size', expected one of", 0) == 0);
  CHECK(
      refusal("max_split_size_mb:64,max_split_size_mb:65") ==
      "position 22: found 'max_split_size_mb', expected each key once; 'max_split_size_mb' stands "
      "there already");
  for (const char* bad : {",",
                          ":",
                          "[",
                          "max_split_size_mb:",
                          "max_split_size_mb:-64",
                          "max_split_size_mb:64MB",
                          "max_split_size_mb:99999999999999999999",
                          "backend:cudaMallocAsync",
                          "pinned_num_register_threads:3",
                          "pinned_num_register_threads:256",
                          "pinned_reserve_segment_size_mb:0",
                          "per_process_memory_fraction:1.5",
                          "per_process_memory_fraction:nan",
                          "garbage_collection_threshold:0",
                          "roundup_power2_divisions:3",
                          "roundup_power2_divisions:[64:8]]",
                          "max_split_size_mb:64,,",
                          "expandable_segments_page_size:1",
                          "oom",
                          "roundup_power2_divisions:[>8]"}) {
    CAPTURE(bad);
    CHECK(refusal(bad) != "");
  }
}

TEST_CASE("allocator settings: garbage never crashes and positions stay inside the string") {
  const std::string pieces[] = {
      "max_split_size_mb",        ":",    ",",    "[",  "]",    "64", ">", " ",
      "roundup_power2_divisions", "True", "1e99", "-1", "\x80", "x"};
  Random random(7);
  for (unsigned round = 0; round < shardfit::test::fuzz_rounds(3000); ++round) {
    std::string text;
    for (unsigned n = random(9); n > 0; --n) text += pieces[random(std::size(pieces))];
    CAPTURE(text);
    try {
      parse_allocator_settings(text);
    } catch (const SettingsError& error) {
      CHECK(error.position <= text.size());
    }
  }
}

TEST_CASE("rounding: 512 at least, then multiples of 512") {
  const AllocatorSettings settings;
  CHECK(round_request(1, settings) == 512);
  CHECK(round_request(512, settings) == 512);
  CHECK(round_request(513, settings) == 1024);
  CHECK(round_request(10 * mib - 511, settings) == 10 * mib);
  CHECK(round_request(10 * mib - 512, settings) == 10 * mib - 512);
}

TEST_CASE("rounding: power-of-2 divisions count above 512 a division, powers of two stay") {
  const AllocatorSettings settings = parse_allocator_settings("roundup_power2_divisions:4");
  CHECK(round_request(2048, settings) == 2048);
  CHECK(round_request(2049, settings) == 2560);
  CHECK(round_request(1200, settings) == 1536);  // not above 512 x 4: multiples of 512
  CHECK(round_request(5 * mib, settings) == 5 * mib);
  CHECK(round_request(5 * mib + 1, settings) == 6 * mib);
  CHECK(round_request(8 * mib, settings) == 8 * mib);
}

TEST_CASE("rounding: result is a multiple of 512, not below the request, and grows with it") {
  std::mt19937_64 random(11);
  for (const char* text :
       {"", "roundup_power2_divisions:2", "roundup_power2_divisions:[4:8,>:32]"}) {
    const AllocatorSettings settings = parse_allocator_settings(text);
    for (int i = 0; i < 2000; ++i) {
      const auto bytes = static_cast<std::int64_t>(1 + (random() >> (24 + random() % 38)));
      const std::int64_t size = round_request(bytes, settings);
      CAPTURE(bytes);
      CHECK(size >= bytes);
      CHECK(size % 512 == 0);
      CHECK(round_request(bytes + 1, settings) >= size);
    }
  }
}
