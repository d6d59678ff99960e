#pragma once
// Keys of many numbers, each known by one.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/number_table.h"

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
    std::uint64_t hash = words.size();
    for (const std::uint32_t word : words) hash = mixed(hash, word);
    const auto found = numbers_.add(hash, [&](std::uint32_t number) {
      return std::ranges::equal(
          words, std::span(all_).subspan(ends_[number], ends_[number + 1] - ends_[number]));
    });
    if (found.second) {
      all_.insert(all_.end(), words.begin(), words.end());
      ends_.push_back(all_.size());
    }
    return found;
  }

 private:
  NumberTable numbers_;
  Words all_;
  std::vector<std::size_t> ends_{0};  // in all, of the words before a number
};

}  // namespace shardfit::graph
