#pragma once
// What the readers of graph formats share.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "spec/reader.h"

namespace shardfit::partition {

/// Node ids accepted: what a double holds exactly.
inline constexpr spec::IntegerRange id_range{-(std::int64_t{1} << 53), std::int64_t{1} << 53};
/// Times, bytes, costs.
inline constexpr spec::RealRange amount_range{0, 1e30};

/// Ids of a graph's nodes, given once each, and the ends of its edges.
class NodeIndex {
 public:
  /// Reads `id` of the next node; reports one that was given before.
  std::int64_t add(spec::MapView& node);
  /// The node an edge's key names, or -1 and a fault.
  int end(spec::MapView& edge, std::string_view key) const;
  /// Reads both ends; (-1, -1) and a fault where they are not two nodes of the graph.
  std::pair<int, int> ends(spec::MapView& edge) const;
  int size() const { return count_; }

 private:
  std::map<std::int64_t, int> index_;
  int count_ = 0;
};

/// true, false, 0 or 1; nothing where the key is absent or faulty.
std::optional<bool> flag(spec::MapView& map, std::string_view key);

/// A node on or behind a directed cycle, or -1 where there is none.
int find_cycle(int nodes, const std::vector<std::pair<int, int>>& arcs);

}  // namespace shardfit::partition
