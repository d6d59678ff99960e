#pragma once
// Enumerates the ideals (down-sets of the precedence) inside a window, each exactly once.

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "partition/cut_graph.h"

namespace shardfit::partition {

/// What a prefix part and the suffix left by it may hold. The bounds are tested on partial
/// decisions: latency and bytes of decided units and the cost of nets already split only grow.
struct Window {
  double prefix_ms = 0;     // most latency (+ cut where prefix_pays) of the ideal
  double suffix_ms = 0;     // most latency (+ cut where suffix_pays) of the rest
  bool prefix_pays = true;  // every device of the prefix pays for crossing nets
  bool suffix_pays = true;  // the same for the rest
  double prefix_bytes = 0;
  double suffix_bytes = 0;
};

/// An ideal as the search hands it out; valid during the call only.
struct FoundIdeal {
  const std::vector<std::uint64_t>* members;  // bit set over units
  double latency_ms;
  double bytes;
  double cut_ms;  // cost of the nets it splits
};

struct SearchCount {
  std::int64_t steps = 0;   // decisions taken
  std::int64_t ideals = 0;  // ideals handed out
  bool complete = true;     // false: the step limit stopped it
};

class IdealSearch {
 public:
  /// `latency` by unit, in ms of the reference device. The graph must outlive the search.
  IdealSearch(const CutGraph& graph, std::vector<double> latency);

  /// Calls `found` for every ideal in the window, the empty and the full one included. `found` may
  /// tighten the window while the search runs and returns false to stop. Takes at most `most_steps`
  /// decisions.
  SearchCount run(const Window* window, std::int64_t most_steps,
                  const std::function<bool(const FoundIdeal&)>& found,
                  double deadline = std::numeric_limits<double>::infinity());

 private:
  void take(int v, bool in);
  bool exclude(int v);
  void undo_to(std::size_t trail);
  bool within() const;
  void reset();

  const CutGraph& graph_;
  std::vector<double> latency_;
  int words_;
  std::vector<std::vector<std::uint64_t>> below_;  // descendants of each unit
  const Window* window_ = nullptr;

  struct Totals {
    double in_ms = 0, out_ms = 0, in_bytes = 0, out_bytes = 0, cut_ms = 0;
  };
  struct NetState {
    int in = 0, out = 0;
  };
  Totals totals_;
  std::vector<signed char> side_;  // -1 undecided, 0 out, 1 in
  std::vector<std::uint64_t> in_set_, undecided_;
  std::vector<NetState> nets_;
  std::vector<int> trail_;
};

}  // namespace shardfit::partition
