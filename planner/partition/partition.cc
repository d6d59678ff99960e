#include "partition/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "partition/problem.h"

namespace shardfit::partition {
namespace {

/// Squares of units times kicks of a search without a budget, about a second; and kicks a unit, at
/// most: what is small is enumerated in no time.
constexpr std::int64_t usual_kicks = 10'000'000, kicks_a_unit = 60;

Problem make_problem(const CutGraph& graph, const std::vector<DeviceClass>& devices,
                     const PartitionOptions& options) {
  Problem p;
  p.graph = &graph;
  p.devices = &devices;
  p.options = &options;
  if (options.budget_seconds > 0) p.deadline = cpu_seconds() + options.budget_seconds;
  bool accelerators = std::any_of(devices.begin(), devices.end(),
                                  [](const DeviceClass& d) { return !d.cpu && d.count > 0; });
  for (const Unit& u : graph.units) {
    p.latency.push_back(accelerators ? u.accelerator_ms : u.cpu_ms);
    p.total_ms += p.latency.back();
    p.total_bytes += u.bytes;
  }
  for (const DeviceClass& d : devices) {
    double power = d.speed;
    if (d.cpu && accelerators) {
      double ratio = 0;
      for (const Unit& u : graph.units)
        if (u.accelerator_ms > 0)
          ratio = std::max(ratio, u.cpu_ms > 0 ? u.accelerator_ms / u.cpu_ms : infinity);
      power = d.speed * ratio;
    }
    p.power.push_back(power);
  }
  return p;
}

struct Bound {
  double ms = 0;
  const char* source = "work";
};

/// No partition is faster than all work spread evenly, or than the largest unit where it is
/// fastest.
Bound simple_bound(const Problem& p) {
  Bound b;
  double power = 0;
  const std::vector<DeviceClass>& devices = *p.devices;
  for (std::size_t d = 0; d < devices.size(); ++d)
    if (devices[d].count > 0) power += devices[d].count * p.power[d];
  if (power > 0 && power < infinity) b.ms = p.total_ms / power;
  for (int v = 0; v < p.graph->size(); ++v) {
    double fastest = infinity;
    for (int d = 0; d < static_cast<int>(devices.size()); ++d)
      if (devices[d].count > 0 && (devices[d].cpu || p.graph->units[v].accelerator_supported))
        fastest = std::min(fastest, p.latency_on(d, v));
    if (fastest > b.ms) b = {fastest, "largest unit"};
  }
  // Sums in another order may come out a little below.
  b.ms /= slack;
  return b;
}

/// What obviously fits nowhere, in words; empty where nothing is obvious.
std::string obstacle(const Problem& p) {
  const std::vector<DeviceClass>& devices = *p.devices;
  double largest = 0, together = 0;
  bool cpu = false;
  for (const DeviceClass& d : devices) {
    if (d.count == 0) continue;
    largest = std::max(largest, d.bytes);
    together += d.count * d.bytes;
    cpu = cpu || d.cpu;
  }
  auto whole = [](double x) { return std::to_string(static_cast<std::int64_t>(std::ceil(x))); };
  bool limited = p.options->limit_last_part;
  if (limited && p.total_bytes > together * slack)
    return "all units together need " + whole(p.total_bytes) + " bytes, the devices hold " +
           whole(together) + ": " + whole(p.total_bytes - together) + " bytes short";
  for (int v = 0; v < p.graph->size(); ++v) {
    const Unit& u = p.graph->units[v];
    int members = static_cast<int>(std::count(p.graph->unit_of.begin(), p.graph->unit_of.end(), v));
    auto first = std::find(p.graph->unit_of.begin(), p.graph->unit_of.end(), v);
    std::string what =
        "node " + std::to_string(first - p.graph->unit_of.begin()) +
        (members > 1 ? " and the " + std::to_string(members - 1) + " tied to it" : "");
    if (limited && u.bytes > largest * slack)
      return what + " need " + whole(u.bytes) + " bytes, the largest device holds " +
             whole(largest) + ": " + whole(u.bytes - largest) + " bytes short";
    if (!u.accelerator_supported && !cpu)
      return what + " cannot run on an accelerator and there is no CPU";
  }
  return "";
}

/// The graph's own order (depth first) and one by levels.
std::vector<std::vector<int>> orders_of(const CutGraph& graph) {
  const int n = graph.size();
  std::vector<std::vector<int>> orders(2, std::vector<int>(n));
  std::vector<int> level(n, 0);
  for (int v = 0; v < n; ++v) {
    orders[0][v] = orders[1][v] = v;
    for (const int* w = graph.predecessors.first(v); w != graph.predecessors.last(v); ++w)
      level[v] = std::max(level[v], level[*w] + 1);
  }
  std::stable_sort(orders[1].begin(), orders[1].end(),
                   [&](int a, int b) { return level[a] < level[b]; });
  return orders;
}

/// Best cut of the two orders; the limit is raised until something fits under it.
Assignment first_solution(const Problem& problem, double bound) {
  std::vector<std::vector<int>> orders = orders_of(*problem.graph);
  Assignment best;
  for (double share : {1.05, 1.3, 2.0, 8.0, infinity}) {
    const double limit = bound > 0 ? bound * share : infinity;
    for (const std::vector<int>& order : orders) {
      Assignment a = cut_order(problem, order, std::min(limit, best.objective));
      if (a.objective < best.objective) best = std::move(a);
    }
    if (best.found()) break;
  }
  return best;
}

class Solver {
 public:
  Solver(const Problem& problem, PartitionResult* result) : p_(problem), result_(*result) {
    for (int d = 0; d < static_cast<int>(p_.devices->size()); ++d)
      for (int i = 0; i < (*p_.devices)[d].count; ++i) list_.push_back(d);
  }

  void run() {
    Bound simple = simple_bound(p_);
    raise(simple.ms, simple.source);
    if (list_.size() == 2 && two_devices(p_.options->most_steps)) return;
    best_ = first_solution(p_, result_.lower_bound_ms);
    if (list_.size() > 2 && by_states(p_.options->most_steps, 2'000'000)) return;
    improve_by_moves(p_, &best_);
  }

  /// Without contiguity every subset is an ideal: improves `seed` by moves, then tries to exhaust
  /// what is better.
  void run_free(Assignment seed) {
    Bound simple = simple_bound(p_);
    raise(simple.ms, simple.source);
    best_ = seed.found() ? std::move(seed) : packed();
    improve_by_moves(p_, &best_);
    const double seconds = p_.options->budget_seconds;
    const auto units = static_cast<std::int64_t>(p_.graph->size());
    // A kick costs about the square of the units.
    if (seconds > 0) {
      improve_by_kicks(p_, std::numeric_limits<std::int64_t>::max(),
                       std::min(p_.deadline, cpu_seconds() + seconds / 2), &best_);
    } else {
      improve_by_kicks(p_, std::min(usual_kicks / (1 + units * units), kicks_a_unit * units),
                       infinity, &best_);
    }
    const std::int64_t most_steps = seconds > 0
                                        ? std::numeric_limits<std::int64_t>::max()
                                        : std::min<std::int64_t>(2'000'000, p_.options->most_steps);
    if (list_.size() == 2) two_devices(most_steps);
    if (list_.size() > 2) by_states(most_steps, seconds > 0 ? 2'000'000 : 50'000);
  }

  Assignment best_;

 private:
  void raise(double bound, const char* source) {
    if (bound <= result_.lower_bound_ms) return;
    result_.lower_bound_ms = bound;
    result_.certificate.bound = source;
  }
  void keep(const Assignment& a) {
    if (a.objective < best_.objective) best_ = a;
  }
  void proven() {
    result_.proven = true;
    result_.certificate.bound = "exhausted";
    result_.certificate.threshold_ms = best_.found() ? best_.objective : infinity;
    if (best_.found()) result_.lower_bound_ms = best_.objective;
  }

  bool two_devices(std::int64_t most_steps) {
    std::vector<std::pair<int, int>> ways{{list_[0], list_[1]}};
    if (list_[0] != list_[1]) ways.push_back({list_[1], list_[0]});
    bool complete = true;
    for (auto [a, b] : ways) {
      ExactOutcome o = solve_two(p_, a, b, best_.objective, most_steps, &result_.certificate);
      keep(o.best);
      complete = complete && o.complete;
    }
    if (complete) proven();
    return complete;
  }

  /// Looks for partitions strictly better than the best known. Where the window up to it is too
  /// wide, thresholds grow from the lower bound: the first that yields a partition yields the best
  /// one, every other raises the bound.
  bool by_states(std::int64_t most_steps, std::int64_t most_ideals) {
    constexpr std::int64_t first_steps = 30'000, first_ideals = 20'000;
    const double low = result_.lower_bound_ms;
    const double high = best_.found() ? best_.objective / slack : infinity;
    ExactOutcome o;
    o.complete = high <= low;
    if (!o.complete) o = attempt(high, first_steps, first_ideals);
    for (double share = 1.0 / 16; !o.complete; share *= 2) {
      double threshold = high < infinity ? low + (high - low) * share : low * (1 + share);
      if (share >= (high < infinity ? 1 : 64)) threshold = high;
      o = attempt(threshold, most_steps, most_ideals);
      if (!o.complete) {
        keep(o.best);
        return false;
      }
      if (o.best.found() || threshold == high) break;
      raise(threshold, "exhausted");
      result_.certificate.threshold_ms = threshold;
      o.complete = false;
    }
    keep(o.best);
    proven();
    return true;
  }

  /// Largest units first, each on the device with most bytes left that may run it.
  Assignment packed() const {
    Assignment out;
    out.device = list_;
    const int n = p_.graph->size();
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return p_.graph->units[a].bytes > p_.graph->units[b].bytes;
    });
    std::vector<double> left;
    for (int d : list_) left.push_back((*p_.devices)[d].bytes);
    out.part.assign(n, 0);
    for (int v : order) {
      int best = -1;
      for (int p = 0; p < static_cast<int>(list_.size()); ++p) {
        const bool runs = p_.graph->units[v].accelerator_supported || (*p_.devices)[list_[p]].cpu;
        if (runs && (best < 0 || left[p] > left[best])) best = p;
      }
      if (best < 0) return {};
      left[best] -= p_.graph->units[v].bytes;
      out.part[v] = best;
    }
    out.objective = objective_of(p_, out);
    return out;
  }

  ExactOutcome attempt(double threshold, std::int64_t steps, std::int64_t ideals) {
    return solve_states(p_, threshold, steps, ideals, &result_.certificate);
  }

  const Problem& p_;
  PartitionResult& result_;
  std::vector<int> list_;  // class of each device
};

}  // namespace

Part measure_part(const RawGraph& raw, const DeviceClass& device, std::vector<int> nodes) {
  Part part;
  std::sort(nodes.begin(), nodes.end());
  std::vector<char> inside(raw.nodes.size(), 0), crossing(raw.nodes.size(), 0);
  // Extended precision: printed digits should not depend on the order of summation.
  long double latency = 0, communication = 0, bytes = 0;
  for (int v : nodes) {
    inside[v] = 1;
    latency += (device.cpu ? raw.nodes[v].cpu_ms : raw.nodes[v].accelerator_ms);
    bytes += raw.nodes[v].bytes;
  }
  latency /= device.speed;
  for (auto [a, b] : raw.edges) {
    if (inside[a] == inside[b] || crossing[a]) continue;
    crossing[a] = 1;
    if (device.communicates) communication += raw.send_cost[a];
  }
  part.latency_ms = static_cast<double>(latency);
  part.communication_ms = static_cast<double>(communication);
  part.load_ms = static_cast<double>(latency + communication);
  part.bytes = static_cast<double>(bytes);
  part.nodes = std::move(nodes);
  return part;
}

namespace {

/// The parts of a solution found on another contraction, as an assignment of this one.
Assignment carried_over(const Problem& problem, const PartitionResult& from) {
  Assignment out;
  if (!from.feasible) return out;
  std::vector<int> part_of(problem.graph->unit_of.size(), 0);
  for (const Part& part : from.parts) {
    for (int v : part.nodes) part_of[v] = static_cast<int>(out.device.size());
    out.device.push_back(part.device_class);
  }
  for (std::size_t d = 0; d < problem.devices->size(); ++d) {  // devices left empty may be used
    int used = static_cast<int>(std::count(out.device.begin(), out.device.end(), d));
    for (; used < (*problem.devices)[d].count; ++used) out.device.push_back(static_cast<int>(d));
  }
  out.part.assign(problem.graph->size(), -1);
  for (std::size_t v = 0; v < part_of.size(); ++v)
    if (out.part[problem.graph->unit_of[v]] < 0) out.part[problem.graph->unit_of[v]] = part_of[v];
  out.objective = objective_of(problem, out);
  return out;
}

void fill_parts(const RawGraph& raw, const Problem& problem, const Assignment& best,
                PartitionResult* result) {
  result->feasible = true;
  std::vector<std::vector<int>> nodes(best.device.size());
  for (int v = 0; v < static_cast<int>(raw.nodes.size()); ++v)
    nodes[best.part[problem.graph->unit_of[v]]].push_back(v);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].empty()) continue;
    const int device = best.device[i];
    result->parts.push_back(measure_part(raw, (*problem.devices)[device], std::move(nodes[i])));
    result->parts.back().device_class = device;
    result->objective_ms = std::max(result->objective_ms, result->parts.back().load_ms);
  }
  if (result->proven || result->lower_bound_ms >= result->objective_ms / slack) {
    result->proven = true;
    result->lower_bound_ms = result->objective_ms;
  }
  if (result->objective_ms > 0)
    result->gap = (result->objective_ms - result->lower_bound_ms) / result->objective_ms;
}

}  // namespace

PartitionResult solve_partition(const RawGraph& raw, const std::vector<DeviceClass>& devices,
                                const PartitionOptions& options) {
  PartitionResult result, contiguous;
  if (!options.contiguous) {
    PartitionOptions first = options;
    first.contiguous = true;
    contiguous = solve_partition(raw, devices, first);
  }
  double bytes = 0, least = infinity;
  for (const RawGraph::Node& n : raw.nodes) bytes += n.bytes;
  for (const DeviceClass& d : devices)
    if (d.count > 0) least = std::min(least, d.bytes);
  CutGraph graph = contract(raw, bytes > least, options.contiguous);
  PartitionOptions scaled = options;
  // A step costs more the larger the graph.
  constexpr int usual_units = 400;
  if (graph.size() > usual_units)
    scaled.most_steps = options.most_steps / graph.size() * usual_units;
  Problem problem = make_problem(graph, devices, scaled);
  result.certificate.units = graph.size();
  result.certificate.nets = static_cast<std::int64_t>(graph.net_cost.size());

  result.reason = obstacle(problem);
  if (!result.reason.empty()) {
    result.objective_ms = result.lower_bound_ms = infinity;
    result.proven = true;
    result.certificate.bound = "infeasible";
    return result;
  }
  Solver solver(problem, &result);
  if (options.contiguous)
    solver.run();
  else
    solver.run_free(carried_over(problem, contiguous));
  if (solver.best_.found()) {
    fill_parts(raw, problem, solver.best_, &result);
    return result;
  }
  result.objective_ms = infinity;
  result.gap = result.proven ? 0 : 1;
  if (result.proven) result.lower_bound_ms = infinity;
  result.reason = result.proven ? "no partition keeps every device within its bytes"
                                : "no partition was found within the limits of the search";
  if (result.proven) result.certificate.bound = "infeasible";
  return result;
}

}  // namespace shardfit::partition
