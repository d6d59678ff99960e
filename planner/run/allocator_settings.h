#pragma once
// The settings string of PyTorch's allocator (PYTORCH_CUDA_ALLOC_CONF), as release 2.13 reads it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shardfit::run {

/// A settings string that is refused: where, what stood there, what could.
struct SettingsError : std::runtime_error {
  SettingsError(std::size_t position, std::string found, std::string expected);
  std::size_t position;  // 0-based offset into the string
  std::string found, expected;
};

/// What moves bytes; the rest of the known keys is checked and has no effect here.
/// Source: c10/core/AllocatorConfig.{h,cpp}, c10/cuda/CUDAAllocatorConfig.{h,cpp} of PyTorch 2.13.
struct AllocatorSettings {
  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t default_large_segment = 20 << 20;

  std::int64_t max_split_size = unlimited;                      // bytes
  std::int64_t max_non_split_rounding = default_large_segment;  // bytes
  std::int64_t large_segment_size = default_large_segment;      // bytes
  double garbage_collection_threshold = 0;                      // of the allowed bytes; 0 = off
  /// log2 of the divisions between powers of two, one an interval from 1 MiB up; 0 = no rounding.
  std::array<std::uint8_t, 16> roundup_shift{};
  bool expandable_segments = false;
  bool throw_on_cudamalloc_oom = false;
  double per_process_memory_fraction = 1.0;  // 1 = no limit

  bool operator==(const AllocatorSettings&) const = default;
};

/// Settings after `text` was given to an allocator that had `before`: max_split_size,
/// max_non_split_rounding, garbage_collection_threshold and the divisions start from their defaults
/// again, the others stay. Stricter than PyTorch in what it cannot have meant: a key given twice,
/// anything but ':' after a key, trailing characters after a number. Throws SettingsError.
AllocatorSettings parse_allocator_settings(std::string_view text,
                                           const AllocatorSettings& before = {});

/// Bytes that a request of `bytes` (1 .. 2^60 - 1) takes under these settings: a multiple of 512.
std::int64_t round_request(std::int64_t bytes, const AllocatorSettings& settings);

}  // namespace shardfit::run
