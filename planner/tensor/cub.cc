#include "tensor/cub.h"

namespace shardfit::tensor {
namespace {

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// One buffer among several (util_temporary_storage.cuh, alias_temporaries).
std::int64_t aligned(std::int64_t bytes) { return div_up(bytes, 256) * 256; }
constexpr std::int64_t slack = 255;

/// The states of the tiles of a look-back scan, 32 more than there are tiles, and an empty second
/// buffer that takes its 256 bytes (single_pass_scan_operators.cuh, ScanTileState).
std::int64_t tile_states(std::int64_t items, std::int64_t tile, std::int64_t state) {
  return aligned((div_up(items, tile) + 32) * state) + 256 + slack;
}

}  // namespace

std::int64_t radix_sort_scratch(const DeviceTraits& device, std::int64_t items, int bits) {
  constexpr std::int64_t digits = 256;
  // So few are sorted by one block: 256 threads, 9 items each (InvokeSingleTile).
  if (items <= 2304) return 1;
  // Items of a block: tuned for 7.x, 8.x and 9.0 on (tuning_radix_sort.cuh, onesweep).
  const std::int64_t tile =
      device.capability_major >= 9 ? 4608 : (device.capability_major == 8 ? 3840 : 2816);
  const std::int64_t passes = div_up(bits, 8);
  const std::int64_t bins = aligned(passes * digits * 8);
  const std::int64_t lookback = aligned(div_up(items, tile) * digits * 4);
  const std::int64_t copies = passes > 1 ? 2 * aligned(items * 8) : 0;
  const std::int64_t counters = aligned(passes * 4);
  return bins + lookback + copies + counters + slack;
}

std::int64_t unique_by_key_scratch(const DeviceTraits& device, std::int64_t items) {
  // Tuned for 8.0 and for 9.0 on (tuning_unique_by_key.cuh); 8.6, 8.9 and older take the default.
  std::int64_t tile = 320;
  if (device.capability_major == 8 && device.capability_minor == 0) tile = 1344;
  if (device.capability_major >= 9) tile = 4928;
  return tile_states(items, tile, 16);
}

std::int64_t scan_scratch(std::int64_t items, std::int64_t element) {
  // An element of eight bytes has its status beside it, a smaller one within the same eight bytes.
  return element >= 8 ? tile_states(items, 896, 16) : tile_states(items, 1920, 8);
}

std::int64_t reduce_sum_scratch(const DeviceTraits& device, std::int64_t items,
                                std::int64_t element) {
  // 256 threads of 16 items are one tile; more go to five times as many blocks as run at once.
  constexpr std::int64_t tile = 4096, blocks_of_multiprocessor = 2, oversubscription = 5;
  if (items <= tile) return 1;
  const std::int64_t blocks = oversubscription * blocks_of_multiprocessor *
                              static_cast<std::int64_t>(device.multiprocessors);
  return aligned(blocks * element) + slack;
}

std::int64_t select_flagged_scratch(std::int64_t items) { return tile_states(items, 4608, 8); }

}  // namespace shardfit::tensor
