#pragma once
// Keys of many numbers, each known by one.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace shardfit::graph {

using Words = std::vector<std::uint32_t>;
inline void add_number(std::uint64_t number, Words& words) {
  words.push_back(static_cast<std::uint32_t>(number));
  words.push_back(static_cast<std::uint32_t>(number >> 32));
}

/// Words by number, in one block of memory however many there are.
class WordsTable {
 public:
  /// The number of these words, counted from 0, and whether they are new.
  std::pair<std::uint32_t, bool> add(const Words& words) {
    if (slots_.size() < 2 * (entries_.size() + 1)) grow();
    const std::uint64_t hash = hash_of(words);
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = hash & mask;
    for (; slots_[place] != 0; place = (place + 1) & mask) {
      const Entry& entry = entries_[slots_[place] - 1];
      if (entry.hash == hash && entry.size == words.size() &&
          std::equal(words.begin(), words.end(), all_.data() + entry.first)) {
        return {slots_[place] - 1, false};
      }
    }
    entries_.push_back({hash, all_.size(), words.size()});
    all_.insert(all_.end(), words.begin(), words.end());
    slots_[place] = static_cast<std::uint32_t>(entries_.size());
    return {slots_[place] - 1, true};
  }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::size_t first = 0, size = 0;  // in all
  };
  static std::uint64_t hash_of(const Words& words) {
    std::uint64_t hash = words.size();
    for (const std::uint32_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 29;
    }
    return hash;
  }
  void grow() {
    slots_.assign(std::max<std::size_t>(64, 2 * slots_.size()), 0);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      std::size_t place = entries_[i].hash & mask;
      while (slots_[place] != 0) place = (place + 1) & mask;
      slots_[place] = static_cast<std::uint32_t>(i + 1);
    }
  }

  Words all_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // numbers + 1; a power of two, at most half of them taken
};

}  // namespace shardfit::graph
