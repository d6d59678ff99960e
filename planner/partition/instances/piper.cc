// JSON of github.com/msr-fiddle/piper.

#include <charconv>
#include <map>

#include "partition/instances/graph_checks.h"
#include "partition/instances/instances.h"

namespace shardfit::partition {
namespace {

/// The sync entries of a variant, one for each of `edges`, keyed by the other end's id.
std::vector<double> read_sync(spec::MapView& variant, std::string_view key,
                              const PiperInstance& instance, const std::vector<int>& edges,
                              bool incoming) {
  std::vector<double> out(edges.size(), 0.0);
  const spec::Node* node = variant.require_map(key);
  if (!node) return out;
  spec::MapView map(*node, quoted(key) + " of " + variant.what(), variant.faults());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const PiperInstance::Edge& edge = instance.edges[edges[i]];
    const std::int64_t id = instance.nodes[incoming ? edge.source : edge.destination].id;
    out[i] = map.require_real(std::to_string(id), amount_range).value;
  }
  map.finish();
  return out;
}

PiperInstance::Variant read_variant(spec::MapView& map, const PiperInstance& instance,
                                    const PiperInstance::Node& node) {
  PiperInstance::Variant v;
  v.id = map.require_string("id").value;
  v.time_per_sample = map.require_real("timePerSample", amount_range).value;
  v.parameter_bytes = map.require_real("parameterSize", amount_range).value;
  v.bytes_per_inflight = map.require_real("memoryUsageA", amount_range).value;
  v.bytes_fixed = map.require_real("memoryUsageB", amount_range).value;
  v.sync_in = read_sync(map, "syncTimeFw", instance, node.incoming, true);
  v.sync_out = read_sync(map, "syncTimeBw", instance, node.outgoing, false);
  map.finish();
  return v;
}

void read_edges(const spec::Node& edges, const NodeIndex& index, Diagnostics& faults,
                PiperInstance* out) {
  int number = 0;
  for (const spec::Node& item : edges.children) {
    spec::MapView map(item, "edge " + std::to_string(number++), faults);
    const auto [source, destination] = index.ends(map);
    const double bytes = map.require_real("communicationCost", amount_range).value;
    map.finish();
    if (source < 0) continue;
    const int id = static_cast<int>(out->edges.size());
    out->nodes[source].outgoing.push_back(id);
    out->nodes[destination].incoming.push_back(id);
    out->edges.push_back({source, destination, bytes});
  }
}

/// The variants of every node, by tensor degree.
void read_variants(const std::vector<const spec::Node*>& offers, Diagnostics& faults,
                   PiperInstance* out) {
  std::map<int, std::map<int, const spec::Node*>> by_degree;  // degree -> node -> its variants
  for (int v = 0; v < static_cast<int>(offers.size()); ++v) {
    if (!offers[v]) continue;
    bool any = false;
    for (const spec::Node& list : offers[v]->children) any = any || !list.children.empty();
    if (!any) faults.error(offers[v]->where, "node " + std::to_string(v) + " offers no variant");
    for (const spec::Node& list : offers[v]->children) {
      int degree = 0;
      const char* end = list.key.data() + list.key.size();
      const auto read = std::from_chars(list.key.data(), end, degree);
      if (read.ec != std::errc() || read.ptr != end || degree < 1 || degree > 4096 ||
          list.key.front() == '0')
        faults.error(list.key_where, "found " + quoted(list.key) +
                                         " as a tensor degree, expected a whole number from 1");
      else
        by_degree[degree][v] = &list;
    }
  }
  for (auto& [degree, lists] : by_degree) out->tensor_degrees.push_back(degree);
  for (int v = 0; v < static_cast<int>(offers.size()); ++v) {
    for (int degree : out->tensor_degrees) {
      std::vector<PiperInstance::Variant>& list = out->nodes[v].variants.emplace_back();
      const auto at = by_degree[degree].find(v);
      if (at == by_degree[degree].end()) continue;
      const std::string what =
          "node " + std::to_string(v) + " at tensor degree " + std::to_string(degree);
      const spec::Node* variants = spec::as_list(*at->second, what, faults);
      if (!variants) continue;
      for (const spec::Node& item : variants->children) {
        spec::MapView map(item, "variant " + std::to_string(list.size()) + " of " + what, faults);
        list.push_back(read_variant(map, *out, out->nodes[v]));
      }
    }
  }
}

}  // namespace

PiperInstance read_piper(const SourcePtr& source) {
  Diagnostics faults;
  const spec::Node tree = spec::read_text(source, faults);
  faults.throw_if_any();
  spec::MapView root(tree, "the instance", faults);
  PiperInstance out;
  out.device_bytes = root.require_real("maxMemoryPerDevice", amount_range).value;
  out.devices = static_cast<int>(root.require_integer("maxDevices", {1, 4096}).value);
  out.bandwidth = root.require_real("bandwidth", {1e-9, 1e30}).value;
  out.microbatches = static_cast<int>(root.require_integer("mbsInBatch", {1, 1 << 20}).value);
  const spec::Node* nodes = root.require_list("nodes");
  const spec::Node* edges = root.require_list("edges");
  root.finish();
  faults.throw_if_any();

  NodeIndex index;
  std::vector<const spec::Node*> offers;
  for (const spec::Node& item : nodes->children) {
    spec::MapView map(item, "node " + std::to_string(index.size()), faults);
    PiperInstance::Node& node = out.nodes.emplace_back();
    node.id = index.add(map);
    if (auto name = map.string("name")) node.name = name->value;
    offers.push_back(map.require_map("TMPCs"));
    map.finish();
  }
  if (out.nodes.empty()) faults.error(nodes->where, "the instance has no nodes");
  faults.throw_if_any();
  read_edges(*edges, index, faults, &out);
  faults.throw_if_any();
  std::vector<std::pair<int, int>> arcs;
  for (const PiperInstance::Edge& e : out.edges) arcs.emplace_back(e.source, e.destination);
  const int on_cycle = find_cycle(index.size(), arcs);
  if (on_cycle >= 0)
    throw InputError(nodes->children[on_cycle].where, "the graph has a cycle through this node");
  read_variants(offers, faults, &out);
  faults.throw_if_any();
  return out;
}

}  // namespace shardfit::partition
