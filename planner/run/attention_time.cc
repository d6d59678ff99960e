#include <algorithm>
#include <cmath>

#include "run/operator_time.h"

namespace shardfit::run {

double attention_seconds(const spec::AttentionSpeed& speed, const DeviceRates& device,
                         const AttentionShape& s, bool sustained) {
  const double rows = static_cast<double>(speed.tile_rows);
  const double apart = s.heads * std::ceil(s.queries / rows);
  const double packed = s.kv_heads * std::ceil(s.queries * s.heads / s.kv_heads / rows);
  const double tiles = s.batch * (speed.packs ? std::min(apart, packed) : apart);
  // A causal tile meets half of the keys on average, the last one all of them.
  const double all_keys = std::ceil(s.keys / rows) * rows;
  const double mean_keys =
      s.causal ? (all_keys - std::min(s.queries, s.keys) / 2 + rows / 2) : all_keys;
  const double one = 1 / device.multiprocessors;
  const auto tile = [&](double keys) {
    const double products = 4 * rows * keys * s.width / (device.bf16 * speed.peak_share * one);
    const double softmax = rows * keys / (speed.exponentials * one);
    const double hidden = speed.overlap * std::min(products, softmax);
    return products + softmax - hidden + speed.tile_seconds;
  };
  const double waves = tiles / device.multiprocessors;
  const double whole = std::max(1.0, std::ceil(waves));
  // Long tiles are begun first: what is lost at the end is less than a tile.
  const double work = (waves + speed.wave_loss * (whole - waves)) * tile(mean_keys);
  double compute = std::max(work, tile(all_keys));
  const double lost = 1 / speed.sustained_share - 1;
  compute *= 1 + (sustained ? lost : lost * compute / (compute + speed.power_seconds));
  const double query_bytes = 2.0 * 2 * s.batch * s.heads * s.queries * s.width;
  const double key_bytes = 2.0 * 2 * s.batch * s.kv_heads * s.keys * s.width;
  const double memory = (query_bytes + key_bytes) / (device.bandwidth * speed.memory_share);
  double seconds = speed.launch_seconds + mean_of_powers(compute, memory, speed.sharpness);
  if (s.paged) seconds += key_bytes / (device.bandwidth * speed.paged_share);
  return seconds;
}

}  // namespace shardfit::run
