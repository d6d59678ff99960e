#pragma once
// The combinatorial core of a partition problem: units that stay together, precedence between them,
// and nets whose cost every communicating device pays once when it holds some but not all pins.

#include <cstdint>
#include <vector>

#include "partition/instances/instances.h"

namespace shardfit::partition {

/// What must share a device: nodes of one colour, of one precedence cycle, or a free pendant.
struct Unit {
  double accelerator_ms = 0;
  double cpu_ms = 0;
  double bytes = 0;
  bool accelerator_supported = true;
};

/// Flat lists: the items of i are items[begin[i] .. begin[i + 1]).
struct Lists {
  std::vector<int> begin{0};
  std::vector<int> items;
  int size() const { return static_cast<int>(begin.size()) - 1; }
  const int* first(int i) const { return items.data() + begin[i]; }
  const int* last(int i) const { return items.data() + begin[i + 1]; }
  int count(int i) const { return begin[i + 1] - begin[i]; }
};

/// Flat lists from (list, item) pairs, in the order given.
Lists make_lists(int lists, const std::vector<std::pair<int, int>>& pairs);

/// Units are numbered in a topological order of the precedence.
struct CutGraph {
  std::vector<Unit> units;
  Lists predecessors, successors;  // direct, without repeats
  Lists net_pins;                  // units of a net, ascending, at least two
  Lists unit_nets;                 // the same, transposed
  std::vector<double> net_cost;    // ms
  std::vector<int> unit_of;        // by node of the instance; -1: left out
  int size() const { return static_cast<int>(units.size()); }
};

/// A node-level description before contraction.
struct RawGraph {
  struct Node {
    double accelerator_ms = 0;
    double cpu_ms = 0;
    double bytes = 0;
    bool accelerator_supported = true;
  };
  std::vector<Node> nodes;
  std::vector<std::pair<int, int>> together;    // pairs that share a device
  std::vector<std::pair<int, int>> precedence;  // source part <= destination part
  std::vector<std::pair<int, int>> edges;       // all dataflow edges: a net a source
  std::vector<double> send_cost;                // by node
  std::vector<double> edge_cost;  // by edge, where every edge is a net of its own instead
};

/// Contracts colours and precedence cycles; merges units without latency into their only neighbour
/// where that can never be worse (it holds no bytes, or `memory_binds` is false): the merged part
/// has no more latency and no more crossing nets. With `contiguous` false the precedence is
/// dropped.
CutGraph contract(const RawGraph& raw, bool memory_binds, bool contiguous);

/// dnn-partitioning semantics: forward nodes carry the precedence; a backward node follows its
/// colour; a colour with backward nodes only mirrors its backward edges (dp.cpp of
/// msr-fiddle/dnn-partitioning, createArtificialForwardNodes).
RawGraph raw_graph(const PlacementInstance& instance);

/// PipeDream semantics: latency forward + backward, bytes activation + parameters, transfers free.
RawGraph raw_graph(const ProfileInstance& instance);

}  // namespace shardfit::partition
