#pragma once
// How the names in one block's part of a program become those of another's.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "program/equal_blocks.h"

namespace shardfit::program {

/// Storages: runs of them that lie in the same order in both, and single ones.
class BlockNames {
 public:
  void add_run(std::uint32_t first, std::uint32_t end, std::uint32_t to) {
    runs_.push_back({first, end, to});
  }
  void add(std::uint32_t from, std::uint32_t to) { singles_.emplace_back(from, to); }
  /// Nothing where the storage is neither block's.
  std::optional<std::uint32_t> of(std::uint32_t id) const {
    for (const Run& run : runs_) {
      if (id >= run.first && id < run.end) return run.to + (id - run.first);
    }
    for (const auto& [from, to] : singles_) {
      if (from == id) return to;
    }
    return std::nullopt;
  }

 private:
  struct Run {
    std::uint32_t first, end, to;
  };
  std::vector<Run> runs_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> singles_;
};

/// Modules: what is in one block, by its place there, is the other's at that place, and so with the
/// blocks before them, whose nodes wait for gradients; what is in none of them is the same.
class ModuleNames {
 public:
  ModuleNames(const EqualBlock& from, const EqualBlock& to) {
    add(from, to);
    if (from.before && to.before) add(*from.before, *to.before);
    std::sort(names_.begin(), names_.end());
  }
  std::uint32_t of(std::uint32_t label) {
    if (label == last_) return last_name_;
    const auto found = std::lower_bound(names_.begin(), names_.end(), std::pair(label, 0u));
    last_ = label;
    return last_name_ = found == names_.end() || found->first != label ? label : found->second;
  }

 private:
  void add(const EqualBlock& from, const EqualBlock& to) {
    for (std::size_t i = 0; i < from.labels.size(); ++i) {
      names_.emplace_back(from.labels[i], to.labels[i]);
    }
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> names_;  // sorted
  std::uint32_t last_ = 0, last_name_ = 0;  // 0 is the whole program
};

}  // namespace shardfit::program
