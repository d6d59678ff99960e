#include "partition/ideal_search.h"

#include <bit>

#include "partition/problem.h"

namespace shardfit::partition {

IdealSearch::IdealSearch(const CutGraph& graph, std::vector<double> latency)
    : graph_(graph), latency_(std::move(latency)), words_((graph.size() + 63) / 64) {
  const int n = graph.size();
  below_.assign(n, std::vector<std::uint64_t>(words_, 0));
  for (int v = n - 1; v >= 0; --v) {
    for (const int* w = graph.successors.first(v); w != graph.successors.last(v); ++w) {
      below_[v][*w / 64] |= std::uint64_t{1} << (*w % 64);
      for (int i = *w / 64; i < words_; ++i) below_[v][i] |= below_[*w][i];
    }
  }
}

void IdealSearch::reset() {
  const int n = graph_.size();
  totals_ = {};
  side_.assign(n, -1);
  in_set_.assign(words_, 0);
  undecided_.assign(words_, ~std::uint64_t{0});
  if (n % 64 != 0) undecided_[words_ - 1] = (std::uint64_t{1} << (n % 64)) - 1;
  nets_.assign(graph_.net_cost.size(), {});
  trail_.clear();
}

/// Decides one unit; totals are restored from copies, so nothing drifts.
void IdealSearch::take(int v, bool in) {
  const Unit& unit = graph_.units[v];
  side_[v] = in;
  undecided_[v / 64] &= ~(std::uint64_t{1} << (v % 64));
  trail_.push_back(v);
  if (in) {
    in_set_[v / 64] |= std::uint64_t{1} << (v % 64);
    totals_.in_ms += latency_[v];
    totals_.in_bytes += unit.bytes;
  } else {
    totals_.out_ms += latency_[v];
    totals_.out_bytes += unit.bytes;
  }
  for (const int* e = graph_.unit_nets.first(v); e != graph_.unit_nets.last(v); ++e) {
    NetState& net = nets_[*e];
    int& mine = in ? net.in : net.out;
    const int other = in ? net.out : net.in;
    if (++mine == 1 && other > 0) totals_.cut_ms += graph_.net_cost[*e];
  }
}

void IdealSearch::undo_to(std::size_t trail) {
  while (trail_.size() > trail) {
    int v = trail_.back();
    trail_.pop_back();
    bool in = side_[v] == 1;
    side_[v] = -1;
    undecided_[v / 64] |= std::uint64_t{1} << (v % 64);
    if (in) in_set_[v / 64] &= ~(std::uint64_t{1} << (v % 64));
    for (const int* e = graph_.unit_nets.first(v); e != graph_.unit_nets.last(v); ++e) {
      --(in ? nets_[*e].in : nets_[*e].out);
    }
  }
}

bool IdealSearch::within() const {
  const Window& w = *window_;
  return totals_.in_ms + (w.prefix_pays ? totals_.cut_ms : 0.0) <= w.prefix_ms &&
         totals_.out_ms + (w.suffix_pays ? totals_.cut_ms : 0.0) <= w.suffix_ms &&
         totals_.in_bytes <= w.prefix_bytes && totals_.out_bytes <= w.suffix_bytes;
}

/// Decides a unit and all that depends on it to be out; false where that leaves the window. The
/// sums alone are tried first: most exclusions fail on them.
bool IdealSearch::exclude(int v) {
  const std::vector<std::uint64_t>& below = below_[v];
  double ms = totals_.out_ms + latency_[v], bytes = totals_.out_bytes + graph_.units[v].bytes;
  const double most_ms = window_->suffix_ms * slack, most_bytes = window_->suffix_bytes * slack;
  for (int i = v / 64; i < words_; ++i) {
    for (std::uint64_t bits = below[i] & undecided_[i]; bits; bits &= bits - 1) {
      int w = i * 64 + std::countr_zero(bits);
      ms += latency_[w];
      bytes += graph_.units[w].bytes;
    }
    if (ms > most_ms || bytes > most_bytes) return false;
  }
  take(v, false);
  bool good = within();
  for (int i = v / 64; good && i < words_; ++i) {
    for (std::uint64_t bits = below[i] & undecided_[i]; bits; bits &= bits - 1)
      take(i * 64 + std::countr_zero(bits), false);
    good = within();
  }
  return good;
}

/// Steps between two looks at the clock, as a mask.
constexpr std::int64_t between_looks = 0xffff;

SearchCount IdealSearch::run(const Window* window, std::int64_t most_steps,
                             const std::function<bool(const FoundIdeal&)>& found, double deadline) {
  window_ = window;
  reset();
  struct Frame {
    int unit;
    bool second;  // the in-branch is done
    std::size_t trail;
    Totals totals;
  };
  std::vector<Frame> frames;
  SearchCount count;
  int word = 0;
  bool descend = true;
  while (true) {
    if (descend) {
      while (word < words_ && undecided_[word] == 0) ++word;
      if (word == words_) {
        ++count.ideals;
        if (!found({&in_set_, totals_.in_ms, totals_.in_bytes, totals_.cut_ms})) return count;
        descend = false;
        continue;
      }
      int v = word * 64 + std::countr_zero(undecided_[word]);
      const bool asks = (count.steps & between_looks) == 0;
      if (++count.steps > most_steps || (asks && cpu_seconds() > deadline)) {
        count.complete = false;
        return count;
      }
      frames.push_back({v, false, trail_.size(), totals_});
      take(v, true);
      descend = within();
      continue;
    }
    if (frames.empty()) return count;
    Frame& f = frames.back();
    undo_to(f.trail);
    totals_ = f.totals;
    word = f.unit / 64;
    if (f.second) {
      frames.pop_back();
      continue;
    }
    f.second = true;
    ++count.steps;
    descend = exclude(f.unit);
  }
}

}  // namespace shardfit::partition
