#pragma once
// What each of many things was first seen as, for one question at a time: a new question costs
// nothing, and none takes memory of its own.

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace shardfit::graph {

/// Of things with small numbers.
class FirstSeen {
 public:
  void begin() { ++stamp_; }
  /// What `id` was first seen as: `here`, if it is new.
  std::uint32_t of(std::uint32_t id, std::uint32_t here) {
    if (seen_.size() <= id) seen_.resize(id + std::size_t{1} + id / 2);
    if (seen_[id].first != stamp_) seen_[id] = {stamp_, here};
    return seen_[id].second;
  }
  /// `none`, if it has not been seen.
  std::uint32_t find(std::uint32_t id, std::uint32_t none) const {
    return id < seen_.size() && seen_[id].first == stamp_ ? seen_[id].second : none;
  }

 private:
  std::uint32_t stamp_ = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> seen_;
};

/// Of things by their addresses.
class FirstSeenAddress {
 public:
  void begin() {
    ++stamp_;
    size_ = 0;
  }
  std::uint32_t of(const void* address, std::uint32_t here) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place_of(address)];
    if (slot.stamp != stamp_) {
      slot = {address, stamp_, here};
      ++size_;
    }
    return slot.value;
  }

 private:
  struct Slot {
    const void* address = nullptr;
    std::uint32_t stamp = 0, value = 0;
  };
  std::size_t place_of(const void* address) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = reinterpret_cast<std::uintptr_t>(address) * 0x9E3779B97F4A7C15 >> 20 & mask;
    while (slots_[place].stamp == stamp_ && slots_[place].address != address) {
      place = (place + 1) & mask;
    }
    return place;
  }
  void grow() {
    std::vector<Slot> old(std::bit_ceil(4 * size_ + 16));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.stamp == stamp_) slots_[place_of(slot.address)] = slot;
    }
  }

  std::uint32_t stamp_ = 0;
  std::size_t size_ = 0;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
};

}  // namespace shardfit::graph
