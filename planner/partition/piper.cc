#include "partition/piper.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "partition/ideal_search.h"
#include "partition/problem.h"
#include "partition/variant_choice.h"

namespace shardfit::partition {
namespace {

using Variant = PiperInstance::Variant;

/// Latency: least device time of the layer over degrees and variants; bytes: least over them with
/// one micro-batch in flight. cpu_ms is zero exactly where nothing of the layer costs anything.
RawGraph raw_graph(const PiperInstance& instance) {
  RawGraph raw;
  std::vector<char> synced(instance.nodes.size(), 0);
  for (const PiperInstance::Node& node : instance.nodes) {
    RawGraph::Node out{infinity, 0, infinity, true};
    for (std::size_t t = 0; t < instance.tensor_degrees.size(); ++t) {
      const double degree = instance.tensor_degrees[t];
      if (node.variants[t].empty()) out.cpu_ms += 1;  // a degree its stage could not have
      for (const Variant& v : node.variants[t]) {
        out.accelerator_ms = std::min(out.accelerator_ms, degree * v.time_per_sample);
        out.bytes = std::min(out.bytes, degree * (v.bytes_per_inflight + v.bytes_fixed));
        out.cpu_ms += v.time_per_sample + v.parameter_bytes + v.bytes_per_inflight + v.bytes_fixed;
        auto tie = [&](double bytes, int other) {
          if (bytes == 0) return;
          out.cpu_ms += bytes;
          synced[other] = 1;
        };
        for (std::size_t i = 0; i < v.sync_in.size(); ++i)
          tie(v.sync_in[i], instance.edges[node.incoming[i]].source);
        for (std::size_t i = 0; i < v.sync_out.size(); ++i)
          tie(v.sync_out[i], instance.edges[node.outgoing[i]].destination);
      }
    }
    raw.nodes.push_back(out);
  }
  for (std::size_t v = 0; v < synced.size(); ++v)
    if (synced[v]) raw.nodes[v].cpu_ms = 1;
  for (const PiperInstance::Edge& e : instance.edges) {
    raw.edges.emplace_back(e.source, e.destination);
    raw.edge_cost.push_back(2 * e.bytes / instance.bandwidth);
  }
  raw.precedence = raw.edges;
  return raw;
}

/// Sums over an ideal for one tensor degree, least over variants; infinite where one layer offers
/// nothing at that degree.
struct DegreeSums {
  double time = 0, parameters = 0, per_inflight = 0, fixed = 0;
  int missing = 0;
};

class PiperSolver {
 public:
  PiperSolver(const PiperInstance& instance, const CutGraph& graph, const PartitionOptions& options,
              PiperResult* result)
      : instance_(instance), graph_(graph), options_(options), result_(*result) {
    words_ = (graph.size() + 63) / 64;
    if (options.budget_seconds > 0) deadline_ = cpu_seconds() + options.budget_seconds;
    members_.resize(graph.size());
    for (int v = 0; v < static_cast<int>(instance.nodes.size()); ++v)
      members_[graph.unit_of[v]].push_back(v);
    for (const Unit& u : graph.units) {
      latency_.push_back(u.accelerator_ms);
      total_ms_ += u.accelerator_ms;
      total_bytes_ += u.bytes;
    }
    for (const std::vector<int>& nodes : members_) {
      std::vector<DegreeSums> sums(instance.tensor_degrees.size());
      for (std::size_t t = 0; t < sums.size(); ++t)
        for (int v : nodes) add(instance.nodes[v].variants[t], &sums[t]);
      unit_sums_.push_back(sums);
    }
  }

  void run() {
    const int k = instance_.devices;
    double bound = total_ms_ / k / slack;
    result_.lower_bound = bound;
    result_.certificate.bound = "work";
    if (total_bytes_ > k * instance_.device_bytes * slack) {
      result_.reason = "all layers together need more bytes than the devices hold";
      result_.proven = true;
      return;
    }
    for (double share = 1.0 / 64;; share *= 2) {
      const double threshold = share < 40 && bound > 0 ? bound * (1 + share) : infinity;
      if (!attempt(threshold)) return;
      if (!result_.stages.empty() || threshold == infinity) {
        result_.proven = inexact_bound_ == infinity;
        if (!result_.proven) raise(std::min(inexact_bound_, objective()));
        return;
      }
      if (inexact_bound_ == infinity) raise(threshold);
    }
  }

 private:
  struct Entry {
    double latency_ms, cut_ms;
    int set;
    std::vector<DegreeSums> sums;
  };
  struct Cell {
    double value = infinity;
    int list = -1, entry = -1, replicas = -1;  // where the later stages continue
    int degree = -1, data = 0, in_flight = 0;
    std::vector<int> nodes, variants;
  };
  struct List {
    std::vector<Entry> entries;
    std::vector<std::uint64_t> sets;
    std::vector<Cell> cells;  // by entry x replicas
  };

  static void add(const std::vector<Variant>& variants, DegreeSums* sums) {
    if (variants.empty()) {
      ++sums->missing;
      return;
    }
    DegreeSums least{infinity, infinity, infinity, infinity, 0};
    for (const Variant& v : variants) {
      least.time = std::min(least.time, v.time_per_sample);
      least.parameters = std::min(least.parameters, v.parameter_bytes);
      least.per_inflight = std::min(least.per_inflight, v.bytes_per_inflight);
      least.fixed = std::min(least.fixed, v.bytes_fixed);
    }
    sums->time += least.time;
    sums->parameters += least.parameters;
    sums->per_inflight += least.per_inflight;
    sums->fixed += least.fixed;
  }

  void raise(double bound) {
    if (bound <= result_.lower_bound) return;
    result_.lower_bound = bound;
    result_.certificate.bound = "exhausted";
    result_.certificate.threshold_ms = bound;
  }
  bool in_time() const { return deadline_ == infinity || cpu_seconds() < deadline_; }
  double objective() const {
    double most = 0;
    for (const PiperStage& s : result_.stages) most = std::max(most, s.time_per_sample);
    return most;
  }

  /// Looks for everything within the threshold; true if it was covered.
  bool attempt(double threshold) {
    threshold_ = threshold;
    const int k = instance_.devices;
    lists_.assign(k + 1, {});
    IdealSearch search(graph_, latency_);
    for (int used = 0; used <= k; ++used)
      if (!list_ideals(used, &search)) return false;
    for (int used = 0; used <= k; ++used)
      for (int e = 0; e < static_cast<int>(lists_[used].entries.size()); ++e)
        if (!extend(used, e)) return false;
    trace();
    return true;
  }

  int replicas(int used) const { return std::min(used, instance_.microbatches); }

  /// Ideals left of later stages on `used` devices.
  bool list_ideals(int used, IdealSearch* search) {
    List& list = lists_[used];
    const int k = instance_.devices;
    Window w;
    w.prefix_ms = used == k ? 0 : (k - used) * threshold_ * slack;
    w.suffix_ms = used == 0 ? 0 : used * threshold_ * slack;
    w.prefix_bytes = (k - used) * instance_.device_bytes * slack;
    w.suffix_bytes = used * instance_.device_bytes * slack;
    auto found = [&](const FoundIdeal& ideal) {
      int size = 0;
      for (std::uint64_t bits : *ideal.members) size += std::popcount(bits);
      // No stage is empty: only the first list holds all, only the last may hold nothing.
      if ((size == graph_.size()) != (used == 0)) return true;
      Entry e{ideal.latency_ms, ideal.cut_ms, static_cast<int>(list.entries.size()),
              std::vector<DegreeSums>(instance_.tensor_degrees.size())};
      for (int i = 0; i < words_; ++i)
        for (std::uint64_t bits = (*ideal.members)[i]; bits; bits &= bits - 1)
          for (std::size_t t = 0; t < e.sums.size(); ++t)
            sum(unit_sums_[i * 64 + std::countr_zero(bits)][t], &e.sums[t]);
      list.entries.push_back(std::move(e));
      list.sets.insert(list.sets.end(), ideal.members->begin(), ideal.members->end());
      return list.entries.size() < most_ideals && in_time();
    };
    SearchCount count = search->run(&w, options_.most_steps, found);
    result_.certificate.steps += count.steps;
    result_.certificate.ideals += count.ideals;
    list.cells.resize(list.entries.size() * static_cast<std::size_t>(replicas(used) + 1));
    if (used == 0)
      for (Cell& c : list.cells) c.value = 0;
    return count.complete && list.entries.size() < most_ideals && in_time();
  }

  static void sum(const DegreeSums& from, DegreeSums* to) {
    to->time += from.time;
    to->parameters += from.parameters;
    to->per_inflight += from.per_inflight;
    to->fixed += from.fixed;
    to->missing += from.missing;
  }

  Cell& cell(int used, int entry, int replica) {
    return lists_[used].cells[static_cast<std::size_t>(entry) * (replicas(used) + 1) + replica];
  }

  /// Puts one more stage before the stages of this entry, in every way.
  bool extend(int used, int entry) {
    if (!in_time()) return false;
    bool reached = false;
    for (int s = 0; s <= replicas(used); ++s)
      reached = reached || cell(used, entry, s).value <= threshold_;
    if (!reached) return true;
    const int k = instance_.devices;
    for (int t = 0; t < static_cast<int>(instance_.tensor_degrees.size()); ++t) {
      const int degree = instance_.tensor_degrees[t];
      for (int d = 1; degree * d <= k - used; ++d)
        if (instance_.microbatches % d == 0)
          for (int e = 0; e < static_cast<int>(lists_[used + degree * d].entries.size()); ++e) {
            link(used, entry, t, d, e);
            if (--looks_left_ < 0) return false;
          }
    }
    return true;
  }

  void link(int used, int from, int t, int d, int to) {
    const int next = used + instance_.tensor_degrees[t] * d;
    const Entry& large = lists_[used].entries[from];
    const Entry& small = lists_[next].entries[to];
    const DegreeSums &a = small.sums[t], &b = large.sums[t];
    if (b.missing > a.missing || small.latency_ms > large.latency_ms * slack) return;
    const double reduce =
        4.0 * (d - 1) / (static_cast<double>(d) * instance_.microbatches * instance_.bandwidth);
    double least = (b.time - a.time) / d + reduce * (b.parameters - a.parameters) +
                   std::abs(large.cut_ms - small.cut_ms) / d;
    if (least > threshold_ * slack) return;
    const std::uint64_t* inner = &lists_[next].sets[static_cast<std::size_t>(small.set) * words_];
    const std::uint64_t* outer = &lists_[used].sets[static_cast<std::size_t>(large.set) * words_];
    std::uint64_t extra = 0, lacking = 0;
    for (int w = 0; w < words_; ++w) {
      lacking |= inner[w] & ~outer[w];
      extra |= outer[w] & ~inner[w];
    }
    if (lacking || !extra) return;
    ++result_.certificate.pairs;
    int y_before = 0;
    VariantChoice choice;
    bool gathered = false;
    for (int s = 0; s <= replicas(used) && s + d <= instance_.microbatches; ++s) {
      const double later = cell(used, from, s).value;
      if (later > threshold_) continue;
      Cell& target = cell(next, to, s + d);
      if (std::max(later, least / slack) >= target.value) continue;
      const int y = (s + d + d - 1) / d;
      const double bytes = (b.per_inflight - a.per_inflight) * y + (b.fixed - a.fixed);
      if (bytes > instance_.device_bytes * slack) continue;
      if (!gathered) gather(inner, outer, t, d, reduce);
      gathered = true;
      if (y != y_before) choice = choose(y);
      y_before = y;
      if (!choice.feasible || stage_base_ + choice.time > threshold_ * slack) continue;
      const double value = std::max(later, stage_base_ + choice.time);
      if (value >= target.value) continue;
      target = {value, used, from, s, t, d, y, stage_nodes_, choice.pick};
    }
  }

  /// The stage between two ideals: its layers, what crosses it, and each variant's time.
  void gather(const std::uint64_t* inner, const std::uint64_t* outer, int t, int d, double reduce) {
    stage_nodes_.clear();
    auto inside = [&](int node) {
      const int u = graph_.unit_of[node];
      return ((outer[u / 64] & ~inner[u / 64]) >> (u % 64) & 1) != 0;
    };
    for (int u = 0; u < graph_.size(); ++u)
      if ((outer[u / 64] & ~inner[u / 64]) >> (u % 64) & 1)
        stage_nodes_.insert(stage_nodes_.end(), members_[u].begin(), members_[u].end());
    std::sort(stage_nodes_.begin(), stage_nodes_.end());
    stage_base_ = 0;
    stage_variants_.assign(stage_nodes_.size(), {});
    stage_costs_.assign(stage_nodes_.size(), {});
    const double wire = 2.0 / (d * instance_.bandwidth);
    for (std::size_t i = 0; i < stage_nodes_.size(); ++i) {
      const PiperInstance::Node& node = instance_.nodes[stage_nodes_[i]];
      stage_variants_[i] = &node.variants[t];
      for (const Variant& v : node.variants[t])
        stage_costs_[i].push_back({v.time_per_sample / d + reduce * v.parameter_bytes, 0});
      auto cross = [&](int e, int other, bool incoming, std::size_t at) {
        if (inside(other)) return;
        stage_base_ += wire * instance_.edges[e].bytes;
        for (std::size_t x = 0; x < node.variants[t].size(); ++x) {
          const Variant& v = node.variants[t][x];
          stage_costs_[i][x].time += wire * (incoming ? v.sync_in[at] : v.sync_out[at]);
        }
      };
      for (std::size_t at = 0; at < node.incoming.size(); ++at)
        cross(node.incoming[at], instance_.edges[node.incoming[at]].source, true, at);
      for (std::size_t at = 0; at < node.outgoing.size(); ++at)
        cross(node.outgoing[at], instance_.edges[node.outgoing[at]].destination, false, at);
    }
  }

  VariantChoice choose(int y) {
    for (std::size_t i = 0; i < stage_costs_.size(); ++i)
      for (std::size_t x = 0; x < stage_costs_[i].size(); ++x) {
        const Variant& v = (*stage_variants_[i])[x];
        stage_costs_[i][x].bytes = v.bytes_per_inflight * y + v.bytes_fixed;
      }
    const double limit = threshold_ < infinity ? threshold_ * slack - stage_base_ : infinity;
    VariantChoice c =
        choose_variants(stage_costs_, instance_.device_bytes * slack, -infinity, limit);
    if (!c.exact) inexact_bound_ = std::min(inexact_bound_, stage_base_ + c.bound);
    return c;
  }

  void trace() {
    const Cell* best = nullptr;
    for (int used = 1; used <= instance_.devices; ++used)
      for (int e = 0; e < static_cast<int>(lists_[used].entries.size()); ++e) {
        const std::uint64_t* set =
            &lists_[used].sets[static_cast<std::size_t>(lists_[used].entries[e].set) * words_];
        if (std::any_of(set, set + words_, [](std::uint64_t bits) { return bits != 0; })) continue;
        for (int s = 0; s <= replicas(used); ++s)
          if (cell(used, e, s).value < (best ? best->value : infinity)) best = &cell(used, e, s);
      }
    result_.stages.clear();
    for (const Cell* c = best; c && c->degree >= 0; c = &cell(c->list, c->entry, c->replicas)) {
      PiperStage stage;
      stage.nodes = c->nodes;
      stage.variants = c->variants;
      stage.tensor_degree = instance_.tensor_degrees[c->degree];
      stage.data_degree = c->data;
      stage.in_flight = c->in_flight;
      measure_stage(instance_, &stage);
      result_.stages.push_back(std::move(stage));
    }
  }

  static constexpr std::size_t most_ideals = 500'000;
  std::int64_t looks_left_ = 1'000'000'000;  // pairs looked at, a few seconds
  const PiperInstance& instance_;
  const CutGraph& graph_;
  const PartitionOptions& options_;
  PiperResult& result_;
  int words_ = 0;
  double deadline_ = infinity, total_ms_ = 0, total_bytes_ = 0, threshold_ = 0;
  double inexact_bound_ = infinity;  // least bound of a stage whose variants were not settled
  std::vector<std::vector<int>> members_;
  std::vector<double> latency_;
  std::vector<std::vector<DegreeSums>> unit_sums_;
  std::vector<List> lists_;
  std::vector<int> stage_nodes_;
  std::vector<const std::vector<Variant>*> stage_variants_;
  std::vector<std::vector<VariantCost>> stage_costs_;
  double stage_base_ = 0;
};

}  // namespace

void measure_stage(const PiperInstance& instance, PiperStage* stage) {
  const std::size_t t =
      static_cast<std::size_t>(std::find(instance.tensor_degrees.begin(),
                                         instance.tensor_degrees.end(), stage->tensor_degree) -
                               instance.tensor_degrees.begin());
  std::vector<char> inside(instance.nodes.size(), 0);
  for (int v : stage->nodes) inside[v] = 1;
  const double d = stage->data_degree;
  double time = 0, crossing = 0, parameters = 0, bytes = 0;
  for (std::size_t i = 0; i < stage->nodes.size(); ++i) {
    const PiperInstance::Node& node = instance.nodes[stage->nodes[i]];
    const Variant& v = node.variants[t][stage->variants[i]];
    time += v.time_per_sample;
    parameters += v.parameter_bytes;
    bytes += v.bytes_per_inflight * stage->in_flight + v.bytes_fixed;
    for (std::size_t e = 0; e < node.incoming.size(); ++e) {
      const PiperInstance::Edge& edge = instance.edges[node.incoming[e]];
      if (!inside[edge.source]) crossing += 2 * (edge.bytes + v.sync_in[e]);
    }
    for (std::size_t e = 0; e < node.outgoing.size(); ++e) {
      const PiperInstance::Edge& edge = instance.edges[node.outgoing[e]];
      if (!inside[edge.destination]) crossing += 2 * (edge.bytes + v.sync_out[e]);
    }
  }
  stage->time_per_sample =
      time / d +
      (crossing / d + 4 * (d - 1) * parameters / (d * instance.microbatches)) / instance.bandwidth;
  stage->device_bytes = bytes;
}

PiperResult solve_piper(const PiperInstance& instance, const PartitionOptions& options) {
  PiperResult result;
  CutGraph graph = contract(raw_graph(instance), true, true);
  result.certificate.units = graph.size();
  result.certificate.nets = static_cast<std::int64_t>(graph.net_cost.size());
  PiperSolver(instance, graph, options, &result).run();
  result.feasible = !result.stages.empty();
  if (!result.feasible) {
    result.objective = infinity;
    if (result.proven) {
      result.lower_bound = infinity;
      result.certificate.bound = "infeasible";
      if (result.reason.empty()) result.reason = "no pipeline keeps every device within its bytes";
    } else {
      result.gap = 1;
      result.reason = "no pipeline was found within the limits of the search";
    }
    return result;
  }
  for (const PiperStage& s : result.stages)
    result.objective = std::max(result.objective, s.time_per_sample);
  if (result.proven || result.lower_bound >= result.objective / slack) {
    result.proven = true;
    result.lower_bound = result.objective;
    result.certificate.bound = "exhausted";
    result.certificate.threshold_ms = result.objective;
  }
  if (result.objective > 0) result.gap = (result.objective - result.lower_bound) / result.objective;
  return result;
}

}  // namespace shardfit::partition
