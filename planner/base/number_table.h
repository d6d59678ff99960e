#pragma once
// Numbers for things that are equal, found by a hash of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shardfit {

/// A hash of what was hashed before and one number more.
inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

/// Numbers things by the order in which they come, equal ones alike. What they are is kept by who
/// asks.
class NumberTable {
 public:
  std::size_t size() const { return hashes_.size(); }

  /// The number of a thing of this hash, and whether it is new. `is(number)` says whether it is the
  /// one that has the number.
  template <class Is>
  std::pair<std::uint32_t, bool> add(std::uint64_t hash, const Is& is) {
    if (slots_.size() < 2 * (hashes_.size() + 1)) grow();
    std::uint32_t& slot = find(hash, is);
    if (slot != 0) return {slot - 1, false};
    hashes_.push_back(hash);
    slot = static_cast<std::uint32_t>(hashes_.size());
    return {slot - 1, true};
  }

 private:
  template <class Is>
  std::uint32_t& find(std::uint64_t hash, const Is& is) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = hash & mask;
    while (slots_[place] != 0 && !(hashes_[slots_[place] - 1] == hash && is(slots_[place] - 1))) {
      place = (place + 1) & mask;
    }
    return slots_[place];
  }
  void grow() {
    slots_.assign(std::max<std::size_t>(64, 2 * slots_.size()), 0);
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
      find(hashes_[i], [](std::uint32_t) { return false; }) = static_cast<std::uint32_t>(i + 1);
    }
  }

  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> slots_;  // numbers + 1; a power of two, at most half of them taken
};

}  // namespace shardfit
