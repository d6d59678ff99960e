#include <algorithm>
#include <cmath>

#include "partition/ideal_search.h"
#include "partition/problem.h"

namespace shardfit::partition {

ExactOutcome solve_two(const Problem& problem, int first, int second, double threshold,
                       std::int64_t most_steps, Certificate* certificate) {
  const std::vector<DeviceClass>& devices = *problem.devices;
  const DeviceClass &a = devices[first], &b = devices[second];
  const CutGraph& graph = *problem.graph;
  ExactOutcome out;

  double best = threshold;
  bool strict = false;  // once a solution is known, only better ones are looked for
  std::vector<std::uint64_t> best_members;
  Window window;
  // Communication is not divided by the speed: with another speed than 1 the window leaves it out
  // and the leaf decides.
  window.prefix_pays = a.communicates && problem.power[first] == 1;
  window.suffix_pays = b.communicates && problem.power[second] == 1;
  window.prefix_bytes = a.bytes * slack;
  window.suffix_bytes = problem.options->limit_last_part ? b.bytes * slack : infinity;
  auto set_window = [&] {
    double most = strict ? std::nextafter(best, 0.0) : best * slack;
    window.prefix_ms = most < infinity ? most * problem.power[first] : infinity;
    window.suffix_ms = most < infinity ? most * problem.power[second] : infinity;
  };
  set_window();

  IdealSearch search(graph, problem.latency);
  bool plain = !a.cpu && !b.cpu && a.speed == 1 && b.speed == 1;
  for (const Unit& u : graph.units) plain = plain && u.accelerator_supported;
  auto found = [&](const FoundIdeal& ideal) {
    double load_a = ideal.latency_ms, load_b = problem.total_ms - ideal.latency_ms;
    if (!plain) {
      load_a = load_b = 0;
      for (int v = 0; v < graph.size(); ++v) {
        bool in = (*ideal.members)[v / 64] >> (v % 64) & 1;
        if (!(in ? a : b).cpu && !graph.units[v].accelerator_supported) return true;
        (in ? load_a : load_b) += problem.latency_on(in ? first : second, v);
      }
    }
    if (a.communicates) load_a += ideal.cut_ms;
    if (b.communicates) load_b += ideal.cut_ms;
    double load = std::max(load_a, load_b);
    if (load < best || (!strict && load <= best)) {
      best = load;
      strict = true;
      best_members = *ideal.members;
      set_window();
    }
    return cpu_seconds() < problem.deadline;
  };
  SearchCount count = search.run(&window, most_steps, found, problem.deadline);
  certificate->ideals += count.ideals;
  certificate->steps += count.steps;
  out.complete =
      count.complete && (problem.deadline == infinity || cpu_seconds() < problem.deadline);
  if (best_members.empty()) return out;
  out.best.device = {first, second};
  out.best.part.resize(graph.size());
  for (int v = 0; v < graph.size(); ++v)
    out.best.part[v] = (best_members[v / 64] >> (v % 64) & 1) ? 0 : 1;
  out.best.objective = best;
  return out;
}

}  // namespace shardfit::partition
