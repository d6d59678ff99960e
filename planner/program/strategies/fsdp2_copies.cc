#include "program/strategies/fsdp2_copies.h"

#include <algorithm>
#include <cmath>

namespace shardfit::program::fsdp2 {
namespace {

constexpr std::int64_t block = 128;
constexpr std::int64_t tile = block * 16;  // bytes a thread block copies at once
constexpr std::int64_t word = 8;

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::int64_t split_table_bytes(const std::vector<std::int64_t>& bytes, std::int64_t chunks,
                               const tensor::DeviceTraits& device) {
  std::int64_t blocks = 0;
  for (const std::int64_t part : bytes) blocks += div_up(part, tile);
  // Twice as many blocks as are resident; the work of the rest is shared between more chunks a
  // block and more rounds a chunk.
  const std::int64_t most =
      device.multiprocessors * device.threads_per_multiprocessor() / block * 2;
  const std::int64_t rounds = div_up(blocks * chunks, most);
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(rounds))));
  const std::int64_t rounds_a_chunk = div_up(rounds, std::min(root, chunks));
  std::int64_t launched = 0;
  for (const std::int64_t part : bytes) launched += div_up(part, tile * rounds_a_chunk);
  const auto parts = static_cast<std::int64_t>(bytes.size());
  return word * (4 * parts + 1 + launched);
}

std::int64_t chunk_table_bytes(const std::vector<std::int64_t>& bytes) {
  std::int64_t blocks = 0;
  for (const std::int64_t part : bytes) blocks += div_up(part, tile);
  const auto parts = static_cast<std::int64_t>(bytes.size());
  return word * (6 * parts + 2 + blocks);
}

bool chunk_kernel(DType from, DType to) {
  return from == to || (from == DType::bf16 && to == DType::f32);
}

}  // namespace shardfit::program::fsdp2
