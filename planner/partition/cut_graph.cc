#include "partition/cut_graph.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <unordered_map>

namespace shardfit::partition {
namespace {

class DisjointSets {
 public:
  explicit DisjointSets(int n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void join(int a, int b) { parent_[find(a)] = find(b); }

 private:
  std::vector<int> parent_;
};

/// Numbers the sets 0, 1, ... in order of first member.
std::vector<int> number_sets(DisjointSets& sets, int n, int* count) {
  std::vector<int> number(n, -1), of(n);
  *count = 0;
  for (int v = 0; v < n; ++v) {
    int root = sets.find(v);
    if (number[root] < 0) number[root] = (*count)++;
    of[v] = number[root];
  }
  return of;
}

void sort_unique(std::vector<std::pair<int, int>>* pairs) {
  std::sort(pairs->begin(), pairs->end());
  pairs->erase(std::unique(pairs->begin(), pairs->end()), pairs->end());
}

std::vector<std::pair<int, int>> mapped(const std::vector<std::pair<int, int>>& pairs,
                                        const std::vector<int>& of) {
  std::vector<std::pair<int, int>> out;
  out.reserve(pairs.size());
  for (auto [a, b] : pairs)
    if (of[a] != of[b]) out.emplace_back(of[a], of[b]);
  sort_unique(&out);
  return out;
}

/// Strongly connected components (Tarjan 1972), without recursion; joins the members of each.
bool join_cycles(int n, const std::vector<std::pair<int, int>>& arcs, DisjointSets* sets) {
  Lists out = make_lists(n, arcs);
  std::vector<int> index(n, -1), low(n, 0), next(n, 0), stack, path;
  std::vector<char> open(n, 0);
  int clock = 0;
  bool any = false;
  for (int root = 0; root < n; ++root) {
    if (index[root] >= 0) continue;
    path.push_back(root);
    while (!path.empty()) {
      int v = path.back();
      if (index[v] < 0) {
        index[v] = low[v] = clock++;
        stack.push_back(v);
        open[v] = 1;
      }
      if (next[v] < out.count(v)) {
        int w = out.first(v)[next[v]++];
        if (index[w] < 0)
          path.push_back(w);
        else if (open[w])
          low[v] = std::min(low[v], index[w]);
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back()] = std::min(low[path.back()], low[v]);
      if (low[v] != index[v]) continue;
      for (int w = -1; w != v;) {
        w = stack.back();
        stack.pop_back();
        open[w] = 0;
        if (w != v) {
          sets->join(w, v);
          any = true;
        }
      }
    }
  }
  return any;
}

struct Net {
  std::uint64_t hash = 0;
  int begin = 0, count = 0;  // pins in NetPins::pins
  double cost = 0;
};

/// Nets over numbered units: pins ascending and distinct, at least two a net.
struct NetPins {
  std::vector<Net> nets;
  std::vector<int> pins;

  /// Adds a net whose pins are the tail of `pins` from `begin` on.
  void close(int begin, double cost) {
    std::sort(pins.begin() + begin, pins.end());
    pins.erase(std::unique(pins.begin() + begin, pins.end()), pins.end());
    int count = static_cast<int>(pins.size()) - begin;
    if (count < 2) {
      pins.resize(begin);
      return;
    }
    std::uint64_t hash = 1469598103934665603ULL;
    for (int i = begin; i < begin + count; ++i)
      hash = (hash ^ static_cast<std::uint64_t>(pins[i] + 1)) * 1099511628211ULL;
    nets.push_back({hash, begin, count, cost});
  }
};

/// One net an edge where edges are priced, else one a source with a paid edge to another unit.
NetPins nets_of(const RawGraph& raw, const std::vector<int>& of) {
  const int nodes = static_cast<int>(raw.nodes.size());
  NetPins result;
  result.pins.reserve(2 * raw.edges.size() + raw.nodes.size());
  for (std::size_t e = 0; e < raw.edge_cost.size(); ++e) {
    if (raw.edge_cost[e] == 0) continue;
    const int begin = static_cast<int>(result.pins.size());
    result.pins.push_back(of[raw.edges[e].first]);
    result.pins.push_back(of[raw.edges[e].second]);
    result.close(begin, raw.edge_cost[e]);
  }
  if (raw.send_cost.empty()) return result;
  Lists out = make_lists(nodes, raw.edges);
  for (int s = 0; s < nodes; ++s) {
    if (out.count(s) == 0 || raw.send_cost[s] == 0) continue;
    int begin = static_cast<int>(result.pins.size());
    result.pins.push_back(of[s]);
    for (const int* d = out.first(s); d != out.last(s); ++d) result.pins.push_back(of[*d]);
    result.close(begin, raw.send_cost[s]);
  }
  return result;
}

NetPins renumbered(const NetPins& nets, const std::vector<int>& number) {
  NetPins result;
  result.pins.reserve(nets.pins.size());
  for (const Net& net : nets.nets) {
    int begin = static_cast<int>(result.pins.size());
    for (int i = net.begin; i < net.begin + net.count; ++i)
      result.pins.push_back(number[nets.pins[i]]);
    result.close(begin, net.cost);
  }
  return result;
}

/// Joins units without latency to a neighbour where that is never worse. Let v be such a unit and u
/// its only predecessor or its only successor (any neighbour, without precedence). Moving v to u's
/// part frees both parts of the nets that tie only u and v, and may make either pay for the nets of
/// v without u; nets with both pay no more than before. So it is safe when the first cost at least
/// as much as the second. It stays true while other units are joined.
bool join_free_units(const std::vector<Unit>& units, const NetPins& nets,
                     const std::vector<std::pair<int, int>>& precedence, bool contiguous,
                     bool memory_binds, DisjointSets* sets) {
  const int n = static_cast<int>(units.size());
  constexpr int none = -1, many = -2;
  std::vector<int> only_before(n, none), only_after(n, none);
  auto note = [](int* slot, int unit) {
    if (*slot == none)
      *slot = unit;
    else if (*slot != unit)
      *slot = many;
  };
  for (auto [a, b] : precedence) {
    note(&only_after[a], b);
    note(&only_before[b], a);
  }
  std::vector<std::pair<int, int>> by_unit;
  by_unit.reserve(nets.pins.size());
  for (int e = 0; e < static_cast<int>(nets.nets.size()); ++e)
    for (int i = 0; i < nets.nets[e].count; ++i)
      by_unit.emplace_back(nets.pins[nets.nets[e].begin + i], e);
  Lists unit_nets = make_lists(n, by_unit);

  auto safe = [&](int v, int u) {
    double tying = 0, other = 0;
    for (const int* e = unit_nets.first(v); e != unit_nets.last(v); ++e) {
      const Net& net = nets.nets[*e];
      const int* pins = &nets.pins[net.begin];
      if (std::find(pins, pins + net.count, u) == pins + net.count)
        other += net.cost;
      else if (net.count == 2)
        tying += net.cost;
    }
    return tying >= other;
  };
  bool any = false;
  for (int v = 0; v < n; ++v) {
    const Unit& unit = units[v];
    if (unit.accelerator_ms != 0 || unit.cpu_ms != 0 || !unit.accelerator_supported ||
        (memory_binds && unit.bytes != 0) || n == 1)
      continue;
    int to = none;
    if (!contiguous) {
      for (const int* e = unit_nets.first(v); to == none && e != unit_nets.last(v); ++e)
        for (int i = 0; to == none && i < nets.nets[*e].count; ++i) {
          int u = nets.pins[nets.nets[*e].begin + i];
          if (u != v && safe(v, u)) to = u;
        }
      if (unit_nets.count(v) == 0) to = v == 0 ? 1 : 0;
    } else if (only_before[v] >= 0 && safe(v, only_before[v])) {
      to = only_before[v];
    } else if (only_after[v] >= 0 && safe(v, only_after[v])) {
      to = only_after[v];
    } else if (only_before[v] == none && only_after[v] == none && unit_nets.count(v) == 0) {
      to = v == 0 ? 1 : 0;  // tied to nothing: fits beside anything
    }
    if (to < 0 || sets->find(to) == sets->find(v)) continue;
    sets->join(v, to);
    any = true;
  }
  return any;
}

std::vector<int> topological_order(int n, const Lists& in, const Lists& out) {
  // Depth first from the latest discovered: keeps a chain's units adjacent, so that few nets are
  // open at a prefix.
  std::vector<int> missing(n), order, ready;
  for (int v = 0; v < n; ++v) missing[v] = in.count(v);
  for (int v = n - 1; v >= 0; --v)
    if (missing[v] == 0) ready.push_back(v);
  while (!ready.empty()) {
    int v = ready.back();
    ready.pop_back();
    order.push_back(v);
    for (const int* w = out.last(v); w != out.first(v);)
      if (--missing[*--w] == 0) ready.push_back(*w);
  }
  assert(static_cast<int>(order.size()) == n);
  return order;
}

/// Equal pin sets become one net with the summed cost.
void store_nets(const NetPins& all, CutGraph* graph) {
  std::vector<Net> nets = all.nets;
  const std::vector<int>& pins = all.pins;
  auto less = [&](const Net& a, const Net& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return std::lexicographical_compare(pins.begin() + a.begin, pins.begin() + a.begin + a.count,
                                        pins.begin() + b.begin, pins.begin() + b.begin + b.count);
  };
  std::stable_sort(nets.begin(), nets.end(), less);
  std::vector<std::pair<int, int>> by_unit;
  by_unit.reserve(pins.size());
  for (std::size_t i = 0; i < nets.size(); ++i) {
    if (i > 0 && !less(nets[i - 1], nets[i])) {
      graph->net_cost.back() += nets[i].cost;
      continue;
    }
    int id = static_cast<int>(graph->net_cost.size());
    graph->net_cost.push_back(nets[i].cost);
    for (int p = nets[i].begin; p < nets[i].begin + nets[i].count; ++p) {
      graph->net_pins.items.push_back(pins[p]);
      by_unit.emplace_back(pins[p], id);
    }
    graph->net_pins.begin.push_back(static_cast<int>(graph->net_pins.items.size()));
  }
  graph->unit_nets = make_lists(graph->size(), by_unit);
}

std::vector<Unit> units_of(const RawGraph& raw, const std::vector<int>& of, int count) {
  std::vector<Unit> units(count);
  for (std::size_t v = 0; v < raw.nodes.size(); ++v) {
    Unit& u = units[of[v]];
    const RawGraph::Node& node = raw.nodes[v];
    u.accelerator_ms += node.accelerator_ms;
    u.cpu_ms += node.cpu_ms;
    u.bytes += node.bytes;
    u.accelerator_supported = u.accelerator_supported && node.accelerator_supported;
  }
  return units;
}

std::vector<std::pair<int, int>> reversed(std::vector<std::pair<int, int>> pairs) {
  for (auto& [a, b] : pairs) std::swap(a, b);
  return pairs;
}

}  // namespace

Lists make_lists(int lists, const std::vector<std::pair<int, int>>& pairs) {
  Lists out;
  out.begin.assign(lists + 1, 0);
  out.items.resize(pairs.size());
  for (auto [list, item] : pairs) ++out.begin[list + 1];
  for (int i = 0; i < lists; ++i) out.begin[i + 1] += out.begin[i];
  std::vector<int> at(out.begin.begin(), out.begin.end() - 1);
  for (auto [list, item] : pairs) out.items[at[list]++] = item;
  return out;
}

CutGraph contract(const RawGraph& raw, bool memory_binds, bool contiguous) {
  const int nodes = static_cast<int>(raw.nodes.size());
  DisjointSets sets(nodes);
  for (auto [a, b] : raw.together) sets.join(a, b);
  int count = 0;
  std::vector<int> of = number_sets(sets, nodes, &count);
  std::vector<std::pair<int, int>> arcs;
  if (contiguous) arcs = mapped(raw.precedence, of);

  // Joins found on the current numbering are carried back to the nodes.
  auto refine = [&](DisjointSets& level) {
    int next = 0;
    std::vector<int> number = number_sets(level, count, &next);
    for (int& u : of) u = number[u];
    count = next;
    arcs = mapped(arcs, number);
    return number;
  };
  if (contiguous) {
    DisjointSets level(count);
    if (join_cycles(count, arcs, &level)) refine(level);
  }
  NetPins nets = nets_of(raw, of);
  std::vector<Unit> units = units_of(raw, of, count);
  for (bool more = true; more;) {
    DisjointSets level(count);
    more = join_free_units(units, nets, arcs, contiguous, memory_binds, &level);
    if (!more) break;
    nets = renumbered(nets, refine(level));
    units = units_of(raw, of, count);
  }

  std::vector<int> order =
      topological_order(count, make_lists(count, reversed(arcs)), make_lists(count, arcs));
  std::vector<int> position(count);
  for (int i = 0; i < count; ++i) position[order[i]] = i;
  for (int& u : of) u = position[u];
  for (auto& [a, b] : arcs) {
    a = position[a];
    b = position[b];
  }
  CutGraph graph;
  graph.units = units_of(raw, of, count);
  graph.unit_of = std::move(of);
  graph.successors = make_lists(count, arcs);
  graph.predecessors = make_lists(count, reversed(arcs));
  store_nets(renumbered(nets, position), &graph);
  return graph;
}

RawGraph raw_graph(const PlacementInstance& instance) {
  RawGraph raw;
  const int n = static_cast<int>(instance.nodes.size());
  raw.nodes.reserve(n);
  std::unordered_map<std::int64_t, int> first_of_colour;
  std::vector<int> group(n), has_forward;
  int groups = 0;
  for (int v = 0; v < n; ++v) {
    const PlacementInstance::Node& node = instance.nodes[v];
    raw.nodes.push_back({node.accelerator_ms, node.cpu_ms, node.bytes, node.accelerator_supported});
    if (node.colour) {
      auto [it, fresh] = first_of_colour.emplace(*node.colour, v);
      group[v] = fresh ? groups++ : group[it->second];
      if (!fresh) raw.together.emplace_back(it->second, v);
    } else {
      group[v] = groups++;
    }
    has_forward.resize(groups, 0);
    if (!node.backward) has_forward[group[v]] = 1;
  }
  raw.edges.reserve(instance.edges.size());
  for (const PlacementInstance::Edge& e : instance.edges) {
    raw.edges.emplace_back(e.source, e.destination);
    bool from_backward = instance.nodes[e.source].backward;
    bool to_backward = instance.nodes[e.destination].backward;
    if (!from_backward && !to_backward) {
      raw.precedence.emplace_back(e.source, e.destination);
    } else if (from_backward && to_backward &&
               (!has_forward[group[e.source]] || !has_forward[group[e.destination]])) {
      raw.precedence.emplace_back(e.destination, e.source);
    }
  }
  raw.send_cost = instance.send_ms;
  return raw;
}

RawGraph raw_graph(const ProfileInstance& instance) {
  RawGraph raw;
  for (const ProfileInstance::Node& node : instance.nodes) {
    double ms = node.forward_ms + node.backward_ms;
    raw.nodes.push_back({ms, ms, node.activation_bytes + node.parameter_bytes, true});
  }
  for (const ProfileInstance::Edge& e : instance.edges) {
    raw.edges.emplace_back(e.source, e.destination);
    raw.precedence.emplace_back(e.source, e.destination);
  }
  raw.send_cost.assign(instance.nodes.size(), 0.0);
  return raw;
}

}  // namespace shardfit::partition
