#pragma once
// Pseudo-random inputs that host and device make alike.

#include <cstdint>

#ifdef __CUDACC__
#define SHARDFIT_BOTH __host__ __device__
#else
#define SHARDFIT_BOTH
#endif

namespace shardfit::calibrate {

/// A number in (-1, 1) with 24 bits: the finaliser of MurmurHash3 (public domain) over seed and
/// index.
SHARDFIT_BOTH inline float value_at(std::uint32_t seed, std::int64_t index) {
  std::uint64_t h = static_cast<std::uint64_t>(index) + (static_cast<std::uint64_t>(seed) << 40) +
                    0x9E3779B97F4A7C15ULL;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  h ^= h >> 33;
  const auto bits = static_cast<std::uint32_t>(h >> 40);
  return (static_cast<float>(bits) + 0.5F) / 8388608.0F - 1.0F;
}

}  // namespace shardfit::calibrate
