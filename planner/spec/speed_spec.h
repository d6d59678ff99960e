#pragma once
// What explains the speed of a device: shares of its peaks, tiles, fixed times, protocols. A device
// file holds it under 'speed'; tools/fit_speed.cc writes those numbers from measured operators.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/diagnostic.h"
#include "base/units.h"
#include "spec/node.h"

namespace shardfit::spec {

/// Tiles of a matrix product's result, rows by columns, from which a library chooses.
struct Tile {
  int rows;
  int columns;
};
inline constexpr std::array<Tile, 6> product_tiles{
    {{256, 256}, {256, 128}, {128, 128}, {128, 64}, {64, 64}, {64, 32}}};

/// Matrix products of one dtype. Shares are of the device's own peak and bandwidth, so that they
/// can be carried over to a device of the same architecture.
struct ProductSpeed {
  double launch_seconds = 3e-6;  // an empty product, start to end on the device
  double peak_share = 0.85;      // of the peak, inside the best tile's loop
  /// Of the peak_share, by tile of product_tiles: what the loop over k reaches.
  std::array<double, product_tiles.size()> tile_shares{1, 0.97, 0.9, 0.75, 0.55, 0.4};
  double tile_seconds = 1.5e-6;   // a tile's beginning and end, during which nothing is multiplied
  double wave_loss = 0.6;         // share of an unfilled last wave that is lost
  double sustained_share = 0.9;   // of the rate, kept once long work meets the power limit
  double power_seconds = 400e-6;  // length of a product at which half of that loss is there
  double memory_share = 0.85;     // of the bandwidth, bytes far beyond the cache
  double cache_ratio = 3;         // cache bandwidth over memory bandwidth
  double cache_bytes = 25e6;      // bytes at which half come from memory
  double split_seconds = 1.5e-6;  // a product whose k is dealt out over tiles: the second kernel
  /// Bytes moved for each element of the first operand before the product: its conversion to 8 or 4
  /// bits with a scale. 0 where it is of the product's dtype.
  double prepared_bytes = 0;
  double prepared_row_seconds = 0;  // and for each of its rows, however short
  double sharpness = 3;  // power of the mean of compute and memory time; larger: their maximum
};

/// Attention without the matrix of scores, forward; causal or whole.
struct AttentionSpeed {
  double launch_seconds = 8e-6;
  double peak_share = 0.6;      // of the bf16 peak, both products
  double exponentials = 4e12;   // a second, the softmax's
  double overlap = 0.5;         // share of the softmax that hides behind products
  std::int64_t tile_rows = 64;  // queries of a tile
  bool packs = true;            // few queries of heads that share keys lie in one tile
  double tile_seconds = 1e-6;   // a tile's beginning and end
  double wave_loss = 0.6;
  double memory_share = 0.7;  // of the bandwidth: query, key, value, output
  double paged_share = 0.3;   // of the bandwidth: keys and values in a serving engine's pages
  double sharpness = 1.5;     // power of the mean of compute and memory time
  double sustained_share = 0.9;
  double power_seconds = 400e-6;
};

/// One way a library moves bytes in an exchange. The cheapest counts.
struct Protocol {
  double latency_seconds = 10e-6;  // of two ranks
  double rank_seconds = 1e-6;      // for every rank more
  double link_share = 0.7;         // of the pair's link, one direction
};

/// One kind of exchange.
struct CollectiveSpeed {
  std::array<Protocol, 3> protocols{{{6e-6, 1.5e-6, 0.08}, {9e-6, 2e-6, 0.3}, {18e-6, 3e-6, 0.75}}};
  /// With n ranks the bandwidth is that of many times 1 / (1 + few_ranks / (n - 1)).
  double few_ranks = 0.3;
  /// Ranks that share a bus: the bandwidth falls with (2 / n) to this power.
  double crowding = 0;
};

/// Everything about a device's speed that is not its peaks.
struct SpeedSpec {
  std::map<std::string, ProductSpeed> products;        // "bf16", "fp8", "nvfp4"
  std::map<std::string, AttentionSpeed> attention;     // "flash2", "flash3", "trtllm", ...
  std::map<std::string, CollectiveSpeed> collectives;  // "all_reduce", "all_gather", ...
  /// By rate: what products took over what is predicted, where they were measured; no key of a
  /// file.
  std::map<std::string, double> product_scale;
  double memory_share = 0.88;      // of the bandwidth: operators that only read and write
  double kernel_seconds = 2.5e-6;  // the shortest of those
  double interval = 0.3;           // half width of a step's time, relative
  std::string inherits;            // the device whose shares these are; "": its own
  std::string inherits_exchange;   // the device whose exchanges it has, where not that one's
  std::string source;
  Location where;
};

/// The map under 'speed' of a device file: 'products', 'attention' and 'collectives' by name, or
/// 'inherits' with the name of the device that has them.
SpeedSpec read_speed(const Node& node, Diagnostics& faults);

}  // namespace shardfit::spec
