// JSON of github.com/msr-fiddle/dnn-partitioning (throughput-inputs).

#include "partition/instances/graph_checks.h"
#include "partition/instances/instances.h"

namespace shardfit::partition {
namespace {

PlacementInstance::Node read_node(spec::MapView& map, NodeIndex* index) {
  PlacementInstance::Node node;
  node.id = index->add(map);
  if (auto name = map.string("name")) node.name = name->value;
  node.accelerator_ms = map.require_real("fpgaLatency", amount_range).value;
  node.cpu_ms = map.require_real("cpuLatency", amount_range).value;
  node.bytes = map.require_real("size", amount_range).value;
  node.backward = flag(map, "isBackwardNode").value_or(false);
  node.accelerator_supported = flag(map, "supportedOnFpga").value_or(true);
  if (auto colour = map.integer("colorClass", id_range)) node.colour = colour->value;
  map.find("layerId");  // of the file's authors; says nothing about cost
  map.finish();
  return node;
}

/// Checks one edge against the nodes and the price its source already has.
void read_edge(spec::MapView& map, const NodeIndex& index, std::vector<char>* priced,
               PlacementInstance* out) {
  const auto [source, destination] = index.ends(map);
  const spec::Located<double> cost = map.require_real("cost", amount_range);
  map.real("size", amount_range);
  map.finish();
  if (source < 0) return;
  if (out->nodes[source].backward && !out->nodes[destination].backward)
    map.faults().error(map.where(), map.what() + " leads from a backward to a forward node");
  if ((*priced)[source] && out->send_ms[source] != cost.value)
    map.faults().error(cost.where, "edges of one source differ in cost",
                       {"expected every out-edge of a node to carry the same cost"});
  (*priced)[source] = 1;
  out->send_ms[source] = cost.value;
  out->edges.push_back({source, destination});
}

}  // namespace

PlacementInstance read_placement(const SourcePtr& source) {
  Diagnostics faults;
  const spec::Node tree = spec::read_text(source, faults);
  faults.throw_if_any();
  spec::MapView root(tree, "the instance", faults);
  PlacementInstance out;
  out.accelerator_bytes = root.require_real("maxSizePerFPGA", amount_range).value;
  out.accelerators = static_cast<int>(root.require_integer("maxFPGAs", {0, 4096}).value);
  out.cpus = static_cast<int>(root.require_integer("maxCPUs", {0, 4096}).value);
  const spec::Node* nodes = root.require_list("nodes");
  const spec::Node* edges = root.require_list("edges");
  root.finish();
  faults.throw_if_any();

  NodeIndex index;
  for (const spec::Node& item : nodes->children) {
    spec::MapView map(item, "node " + std::to_string(index.size()), faults);
    out.nodes.push_back(read_node(map, &index));
  }
  if (out.nodes.empty()) faults.error(nodes->where, "the instance has no nodes");
  faults.throw_if_any();

  out.send_ms.assign(out.nodes.size(), 0.0);
  std::vector<char> priced(out.nodes.size(), 0);
  int number = 0;
  for (const spec::Node& item : edges->children) {
    spec::MapView map(item, "edge " + std::to_string(number++), faults);
    read_edge(map, index, &priced, &out);
  }
  faults.throw_if_any();
  std::vector<std::pair<int, int>> arcs;
  for (const PlacementInstance::Edge& e : out.edges) arcs.emplace_back(e.source, e.destination);
  const int on_cycle = find_cycle(index.size(), arcs);
  if (on_cycle >= 0)
    throw InputError(nodes->children[on_cycle].where, "the graph has a cycle through this node");
  return out;
}

}  // namespace shardfit::partition
