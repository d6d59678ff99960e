#include "tensor/compute_table.h"

#include <bit>

namespace shardfit::tensor {
namespace {

std::uint64_t hash_of(const Compute& c) {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(c.kind);
  const auto add = [&](std::uint64_t value) {
    hash = (std::rotl(hash, 29) ^ value) * 0x9e3779b97f4a7c15u;
  };
  add(std::uint64_t{c.module} << 16 | std::uint64_t{c.backward} << 8 |
      static_cast<std::uint64_t>(c.dtype));
  add(std::bit_cast<std::uint64_t>(c.flops));
  add(std::bit_cast<std::uint64_t>(c.bytes));
  add(static_cast<std::uint64_t>(c.m));
  add(static_cast<std::uint64_t>(c.n));
  add(static_cast<std::uint64_t>(c.k));
  add(static_cast<std::uint64_t>(c.groups));
  return hash ^ (hash >> 32);
}

}  // namespace

std::uint32_t ComputeTable::id_of(const Compute& compute, std::vector<Compute>& computes) {
  // What ran before runs again in the same order, mostly.
  if (last_ + 1 < computes.size() && computes[last_ + 1] == compute) return ++last_;
  if (2 * (computes.size() + 1) > slots_.size()) grow(computes);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(compute) & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    if (computes[slots_[at] - 1] == compute) return last_ = slots_[at] - 1;
  }
  computes.push_back(compute);
  slots_[at] = static_cast<std::uint32_t>(computes.size());
  return last_ = slots_[at] - 1;
}

void ComputeTable::grow(const std::vector<Compute>& computes) {
  slots_.assign(std::bit_ceil(4 * (computes.size() + 64)), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < computes.size(); ++i) {
    std::size_t at = hash_of(computes[i]) & mask;
    while (slots_[at] != 0) at = (at + 1) & mask;
    slots_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace shardfit::tensor
