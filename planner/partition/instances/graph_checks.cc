#include "partition/instances/graph_checks.h"

namespace shardfit::partition {

std::int64_t NodeIndex::add(spec::MapView& node) {
  const spec::Located<std::int64_t> id = node.require_integer("id", id_range);
  const auto [at, fresh] = index_.emplace(id.value, count_++);
  if (!fresh && node.find("id"))
    node.faults().error(id.where, "node id " + std::to_string(id.value) + " is given twice",
                        {"first by node " + std::to_string(at->second)});
  return id.value;
}

int NodeIndex::end(spec::MapView& edge, std::string_view key) const {
  const auto before = edge.faults().size();
  const spec::Located<std::int64_t> id = edge.require_integer(key, id_range);
  if (edge.faults().size() != before) return -1;
  const auto at = index_.find(id.value);
  if (at != index_.end()) return at->second;
  edge.faults().error(id.where, quoted(key) + " of " + edge.what() + " is " +
                                    std::to_string(id.value) + ", which is no node's id");
  return -1;
}

std::pair<int, int> NodeIndex::ends(spec::MapView& edge) const {
  const int source = end(edge, "sourceId"), destination = end(edge, "destId");
  if (source < 0 || destination < 0) return {-1, -1};
  if (source != destination) return {source, destination};
  edge.faults().error(edge.where(), edge.what() + " joins a node to itself");
  return {-1, -1};
}

std::optional<bool> flag(spec::MapView& map, std::string_view key) {
  const spec::Node* node = map.find(key);
  if (!node) return {};
  if (node->kind == spec::Kind::integer && (node->text == "0" || node->text == "1"))
    return node->text == "1";
  if (node->kind == spec::Kind::boolean) return node->text == "true";
  if (node->kind != spec::Kind::faulty)
    map.faults().error(node->where, quoted(key) + " of " + map.what() + " is " +
                                        spec::describe(*node) + ", expected true, false, 0 or 1");
  return {};
}

int find_cycle(int nodes, const std::vector<std::pair<int, int>>& arcs) {
  std::vector<std::vector<int>> out(nodes);
  std::vector<int> missing(nodes, 0), ready;
  for (auto [a, b] : arcs) {
    out[a].push_back(b);
    ++missing[b];
  }
  for (int v = 0; v < nodes; ++v)
    if (missing[v] == 0) ready.push_back(v);
  while (!ready.empty()) {
    const int v = ready.back();
    ready.pop_back();
    for (int w : out[v])
      if (--missing[w] == 0) ready.push_back(w);
  }
  for (int v = 0; v < nodes; ++v)
    if (missing[v] > 0) return v;
  return -1;
}

}  // namespace shardfit::partition
