#include <algorithm>
#include <random>

#include "partition/problem.h"

namespace shardfit::partition {
namespace {

/// Loads of all parts, kept up to date under moves of single units.
class PartLoads {
 public:
  PartLoads(const Problem& problem, Assignment* assignment)
      : problem_(problem), graph_(*problem.graph), a_(*assignment) {
    parts_ = static_cast<int>(a_.device.size());
    held_.assign(graph_.net_cost.size() * static_cast<std::size_t>(parts_), 0);
    latency_.assign(parts_, 0);
    communication_.assign(parts_, 0);
    bytes_.assign(parts_, 0);
    for (int v = 0; v < graph_.size(); ++v) add(v, a_.part[v], 1);
  }

  int parts() const { return parts_; }
  double load(int p) const {
    const DeviceClass& d = (*problem_.devices)[a_.device[p]];
    return latency_[p] + (d.communicates ? communication_[p] : 0.0);
  }
  bool fits(int p) const {
    if (!problem_.options->limit_last_part && p == parts_ - 1) return true;
    return bytes_[p] <= (*problem_.devices)[a_.device[p]].bytes * slack;
  }
  double most() const {
    double m = 0;
    for (int p = 0; p < parts_; ++p) m = std::max(m, load(p));
    return m;
  }
  /// Order by the largest load, then by the squares: plateaus lead somewhere.
  std::pair<double, double> score() const {
    double squares = 0;
    for (int p = 0; p < parts_; ++p) squares += load(p) * load(p);
    return {most(), squares};
  }
  void move(int v, int to) {
    add(v, a_.part[v], -1);
    a_.part[v] = to;
    add(v, to, 1);
  }
  bool allowed(int v, int to) const {
    if (!graph_.units[v].accelerator_supported && !(*problem_.devices)[a_.device[to]].cpu)
      return false;
    for (const int* w = graph_.predecessors.first(v); w != graph_.predecessors.last(v); ++w)
      if (a_.part[*w] > to) return false;
    for (const int* w = graph_.successors.first(v); w != graph_.successors.last(v); ++w)
      if (a_.part[*w] < to) return false;
    return true;
  }

 private:
  void add(int v, int p, int sign) {
    latency_[p] += sign * problem_.latency_on(a_.device[p], v);
    bytes_[p] += sign * graph_.units[v].bytes;
    for (const int* e = graph_.unit_nets.first(v); e != graph_.unit_nets.last(v); ++e) {
      int& h = held_[static_cast<std::size_t>(*e) * parts_ + p];
      bool before = h > 0 && h < graph_.net_pins.count(*e);
      h += sign;
      bool after = h > 0 && h < graph_.net_pins.count(*e);
      if (before != after) communication_[p] += (after ? 1 : -1) * graph_.net_cost[*e];
    }
  }

  const Problem& problem_;
  const CutGraph& graph_;
  Assignment& a_;
  int parts_ = 0;
  std::vector<int> held_;
  std::vector<double> latency_, communication_, bytes_;
};

constexpr std::int64_t most_trials = 40'000'000;

/// Every unit moves once, each time the one that leaves the best score, however bad; then all moves
/// after the best moment are taken back (Fiduccia and Mattheyses 1982). True if the score improved.
bool move_pass(const Problem& problem, PartLoads* loads, Assignment* assignment,
               std::int64_t* trials) {
  const int n = problem.graph->size();
  std::vector<char> locked(n, 0);
  std::vector<std::pair<int, int>> moves;  // unit, where it came from
  std::pair<double, double> best = loads->score();
  std::size_t keep = 0;
  constexpr std::size_t patience = 60;  // moves without a better moment
  while (moves.size() < keep + patience && *trials < most_trials &&
         cpu_seconds() < problem.deadline) {
    std::pair<double, double> next{infinity, infinity};
    int unit = -1, to = -1;
    for (int v = 0; v < n; ++v) {
      if (locked[v]) continue;
      const int home = assignment->part[v];
      for (int p = 0; p < loads->parts(); ++p) {
        if (p == home || !loads->allowed(v, p)) continue;
        ++*trials;
        loads->move(v, p);
        if (loads->fits(p) && loads->score() < next) {
          next = loads->score();
          unit = v;
          to = p;
        }
        loads->move(v, home);
      }
    }
    if (unit < 0) break;
    moves.emplace_back(unit, assignment->part[unit]);
    locked[unit] = 1;
    loads->move(unit, to);
    const bool better = next.first < best.first / slack ||
                        (next.first <= best.first && next.second < best.second * (1 - 1e-9));
    if (!better) continue;
    best = next;
    keep = moves.size();
  }
  while (moves.size() > keep) {
    loads->move(moves.back().first, moves.back().second);
    moves.pop_back();
  }
  return keep > 0;
}

/// Units that a kick moves, at most, and by how much the search may go up from where it is.
constexpr int most_kicked = 6;
constexpr double kick_tolerance = 1.0005;

}  // namespace

void improve_by_moves(const Problem& problem, Assignment* assignment) {
  if (!assignment->found()) return;
  PartLoads loads(problem, assignment);
  constexpr int most_passes = 20;
  std::int64_t trials = 0;
  for (int pass = 0; pass < most_passes && trials < most_trials; ++pass)
    if (!move_pass(problem, &loads, assignment, &trials)) break;
  assignment->objective = objective_of(problem, *assignment);
}

void improve_by_kicks(const Problem& problem, std::int64_t kicks, double deadline,
                      Assignment* best) {
  const int units = problem.graph->size(), parts = static_cast<int>(best->device.size());
  if (!best->found() || units < 2 || parts < 2) return;
  std::mt19937_64 random(1);  // the same for every run
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Assignment now = *best;  // may be a little worse than the best
  for (std::int64_t i = 0; i < kicks && cpu_seconds() < deadline; ++i) {
    Assignment next = now;
    for (int moved = 2 + below(most_kicked - 1); moved > 0; --moved) {
      next.part[below(units)] = below(parts);
    }
    improve_by_moves(problem, &next);
    if (next.objective < best->objective) *best = next;
    const bool near = next.objective <= now.objective * kick_tolerance;
    if (near && next.objective <= best->objective * kick_tolerance) now = std::move(next);
  }
}

double objective_of(const Problem& problem, const Assignment& assignment) {
  Assignment copy = assignment;
  PartLoads loads(problem, &copy);
  for (int p = 0; p < loads.parts(); ++p)
    if (!loads.fits(p)) return infinity;
  for (int v = 0; v < problem.graph->size(); ++v)
    if (!problem.graph->units[v].accelerator_supported &&
        !(*problem.devices)[copy.device[copy.part[v]]].cpu)
      return infinity;
  return loads.most();
}

}  // namespace shardfit::partition
