#include "tensor/compute_table.h"

#include <bit>

namespace shardfit::tensor {
namespace {

std::uint64_t hash_of(const Compute& c) {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(c.kind);
  hash = mixed(hash, std::uint64_t{c.module} << 16 | std::uint64_t{c.backward} << 8 |
                         static_cast<std::uint64_t>(c.dtype));
  hash = mixed(hash, std::bit_cast<std::uint64_t>(c.flops));
  hash = mixed(hash, std::bit_cast<std::uint64_t>(c.bytes));
  for (const std::int64_t size : {c.m, c.n, c.k, c.groups}) {
    hash = mixed(hash, static_cast<std::uint64_t>(size));
  }
  return hash;
}

}  // namespace

std::uint32_t ComputeTable::id_of(const Compute& compute, std::vector<Compute>& computes) {
  // What ran before runs again in the same order, mostly.
  if (last_ + 1 < computes.size() && computes[last_ + 1] == compute) return ++last_;
  const auto [id, fresh] = numbers_.add(
      hash_of(compute), [&](std::uint32_t known) { return computes[known] == compute; });
  if (fresh) computes.push_back(compute);
  return last_ = id;
}

}  // namespace shardfit::tensor
