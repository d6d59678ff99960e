#include <algorithm>
#include <cmath>

#include "run/operator_time.h"

namespace shardfit::run {
namespace {

using spec::ProductSpeed;

/// How sharply a cache is full: a power of bytes over its size.
constexpr double cache_edge = 8;

double ceil_over(double a, double b) { return std::ceil(a / b); }

/// Work of `each` seconds a tile on so many multiprocessors: the last wave is partly lost.
double waves_of(double tiles, double places, double loss) {
  const double waves = tiles / places;
  const double whole = std::max(1.0, std::ceil(waves));
  return whole <= 1 ? 1 : waves + loss * (whole - waves);
}

/// The tiles of one shape, k dealt out over `parts` of them.
double tiled(const ProductSpeed& speed, const DeviceRates& device, double rate_of_one,
             const ProductShape& s, spec::Tile tile, double share, double parts) {
  const double tiles = ceil_over(s.m, tile.rows) * ceil_over(s.n, tile.columns) * s.groups * parts;
  const double depth = ceil_over(s.k / parts, 64) * 64;
  const double loop = 2.0 * tile.rows * tile.columns * depth / (rate_of_one * share);
  double seconds =
      waves_of(tiles, device.multiprocessors, speed.wave_loss) * (loop + speed.tile_seconds);
  // What the tiles read comes out of the cache.
  const double read = tiles * depth * (tile.rows + tile.columns) * s.element_bytes;
  seconds = std::max(seconds, read / (device.bandwidth * speed.cache_ratio));
  if (parts > 1) {
    const double partial = 8.0 * s.m * s.n * s.groups * parts;  // fp32, written and read
    seconds += speed.split_seconds + partial / (device.bandwidth * speed.cache_ratio);
  }
  return seconds;
}

}  // namespace

double mean_of_powers(double a, double b, double power) {
  const double larger = std::max(a, b);
  const double smaller = std::min(a, b);
  if (larger <= 0) return 0;
  return larger * std::pow(1 + std::pow(smaller / larger, power), 1 / power);
}

double product_seconds(const ProductSpeed& speed, const DeviceRates& device, double peak,
                       const ProductShape& shape, bool sustained) {
  const double rate_of_one = peak * speed.peak_share / device.multiprocessors;
  double compute = 1e30;
  // Rows and columns are alike: the longer side lies along the tile's longer side.
  ProductShape s = shape;
  if (s.m < s.n) std::swap(s.m, s.n);
  for (std::size_t i = 0; i < spec::product_tiles.size(); ++i) {
    const spec::Tile tile = spec::product_tiles[i];
    const double tiles = ceil_over(s.m, tile.rows) * ceil_over(s.n, tile.columns) * s.groups;
    for (double parts = 1; parts <= 32; parts *= 2) {
      if (parts > 1 && (tiles * parts > 2 * device.multiprocessors || s.k / parts < 128)) break;
      compute = std::min(compute,
                         tiled(speed, device, rate_of_one, s, tile, speed.tile_shares[i], parts));
    }
  }
  const double lost = 1 / speed.sustained_share - 1;
  compute *= 1 + (sustained ? lost : lost * compute / (compute + speed.power_seconds));
  const double bytes =
      s.groups * (s.element_bytes * s.k * (s.m + s.n) + s.output_bytes * s.m * s.n);
  // What fits the cache is still there from the run before, as long as it fits.
  const double missed = 1 / (1 + std::pow(speed.cache_bytes / bytes, cache_edge));
  const double memory = bytes * missed / (device.bandwidth * speed.memory_share) +
                        bytes / (device.bandwidth * speed.cache_ratio);
  const double prepared =
      shape.groups * shape.m *
      (speed.prepared_row_seconds + speed.prepared_bytes * shape.k / device.bandwidth);
  return speed.launch_seconds + prepared + mean_of_powers(compute, memory, speed.sharpness);
}

}  // namespace shardfit::run
