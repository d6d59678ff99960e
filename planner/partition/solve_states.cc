// K devices by bisection on the threshold's side: for every state (devices used so far) the ideals
// a prefix may end at, then a DP over pairs of nested ideals of neighbouring states.

#include <algorithm>
#include <bit>
#include <cmath>

#include "partition/ideal_search.h"
#include "partition/problem.h"

namespace shardfit::partition {
namespace {

/// Ideals of one state, sorted by latency; bit sets lie one after the other.
struct IdealList {
  struct Entry {
    double latency_ms, cut_ms, bytes;
    double unsupported;  // units an accelerator cannot run
    double cpu_ms;
    double value;  // least max-load of a chain that ends here
    int set;       // index into sets
    int from_state, from_entry, device;
  };
  std::vector<Entry> entries;
  std::vector<std::uint64_t> sets;
};

class StateSolver {
 public:
  StateSolver(const Problem& problem, double threshold, std::int64_t most_steps,
              std::int64_t most_ideals, Certificate* certificate)
      : problem_(problem),
        graph_(*problem.graph),
        devices_(*problem.devices),
        states_(devices_),
        threshold_(threshold),
        steps_left_(most_steps),
        ideals_left_(most_ideals),
        certificate_(certificate),
        words_((graph_.size() + 63) / 64),
        lists_(states_.states) {}

  ExactOutcome run() {
    ExactOutcome out;
    IdealSearch search(graph_, problem_.latency);
    make_masks();
    add_end(0, false);
    for (int s = 1; s + 1 < states_.states; ++s)
      if (!list_ideals(s, &search)) return out;
    add_end(states_.states - 1, true);
    for (int s = 1; s < states_.states; ++s)
      for (int d = 0; d < static_cast<int>(devices_.size()); ++d)
        if (states_.used(s, d) > 0 && !link(s - states_.stride[d], s, d)) return out;
    out.complete = true;
    const IdealList::Entry& last = lists_.back().entries.front();
    if (last.value <= threshold_) out.best = trace();
    return out;
  }

 private:
  void make_masks() {
    const int nets = static_cast<int>(graph_.net_cost.size());
    pin_masks_.assign(static_cast<std::size_t>(nets) * words_, 0);
    for (int e = 0; e < nets; ++e)
      for (const int* p = graph_.net_pins.first(e); p != graph_.net_pins.last(e); ++p)
        pin_masks_[static_cast<std::size_t>(e) * words_ + *p / 64] |= std::uint64_t{1} << (*p % 64);
  }

  void add_end(int state, bool full) {
    IdealList& list = lists_[state];
    list.sets.assign(words_, 0);
    IdealList::Entry e{0, 0, 0, 0, 0, full ? infinity : 0.0, 0, -1, -1, -1};
    if (full) {
      for (int v = 0; v < graph_.size(); ++v) add_unit(v, &e, list.sets.data());
      e.latency_ms = problem_.total_ms;
    }
    list.entries.push_back(e);
  }

  void add_unit(int v, IdealList::Entry* e, std::uint64_t* set) const {
    const Unit& u = graph_.units[v];
    e->latency_ms += problem_.latency[v];
    e->bytes += u.bytes;
    e->cpu_ms += u.cpu_ms;
    e->unsupported += u.accelerator_supported ? 0 : 1;
    set[v / 64] |= std::uint64_t{1} << (v % 64);
  }

  Window window_of(int state) const {
    Window w;
    w.prefix_ms = w.suffix_ms = 0;
    for (int d = 0; d < static_cast<int>(devices_.size()); ++d) {
      const DeviceClass& device = devices_[d];
      int used = states_.used(state, d), left = device.count - used;
      auto add = [&](int count, double* ms, double* bytes, bool* pays) {
        if (count == 0) return;
        *ms += count * threshold_ * problem_.power[d];
        *bytes += count * device.bytes;
        *pays = *pays && device.communicates && problem_.power[d] == 1;
      };
      add(used, &w.prefix_ms, &w.prefix_bytes, &w.prefix_pays);
      add(left, &w.suffix_ms, &w.suffix_bytes, &w.suffix_pays);
    }
    // Sums of the same numbers in another order differ in their last bits.
    w.prefix_ms *= slack;
    w.suffix_ms *= slack;
    w.prefix_bytes *= slack;
    w.suffix_bytes *= slack;
    if (!problem_.options->limit_last_part) w.suffix_bytes = infinity;
    return w;
  }

  bool list_ideals(int state, IdealSearch* search) {
    IdealList& list = lists_[state];
    Window window = window_of(state);
    auto found = [&](const FoundIdeal& ideal) {
      IdealList::Entry e{
          ideal.latency_ms, ideal.cut_ms, ideal.bytes, 0, 0, infinity, 0, -1, -1, -1};
      e.set = static_cast<int>(list.entries.size());
      if (mixed()) {
        for (int w = 0; w < words_; ++w)
          for (std::uint64_t bits = (*ideal.members)[w]; bits; bits &= bits - 1) {
            const Unit& u = graph_.units[w * 64 + std::countr_zero(bits)];
            e.cpu_ms += u.cpu_ms;
            e.unsupported += u.accelerator_supported ? 0 : 1;
          }
      }
      list.entries.push_back(e);
      list.sets.insert(list.sets.end(), ideal.members->begin(), ideal.members->end());
      return --ideals_left_ > 0 && in_time();
    };
    SearchCount count = search->run(&window, steps_left_, found);
    steps_left_ -= count.steps;
    certificate_->steps += count.steps;
    certificate_->ideals += count.ideals;
    std::sort(list.entries.begin(), list.entries.end(),
              [](const IdealList::Entry& a, const IdealList::Entry& b) {
                return a.latency_ms != b.latency_ms ? a.latency_ms < b.latency_ms : a.set < b.set;
              });
    return count.complete && ideals_left_ > 0 && in_time();
  }

  bool mixed() const {
    for (const DeviceClass& d : devices_)
      if (d.cpu) return true;
    for (const Unit& u : graph_.units)
      if (!u.accelerator_supported) return true;
    return false;
  }

  bool in_time() const {
    return problem_.deadline == infinity || cpu_seconds() < problem_.deadline;
  }

  /// Nets split by the ideal, with the pins outside it.
  void open_nets(const std::uint64_t* set) {
    open_cost_.clear();
    open_masks_.clear();
    const int nets = static_cast<int>(graph_.net_cost.size());
    for (int e = 0; e < nets; ++e) {
      const std::uint64_t* pins = &pin_masks_[static_cast<std::size_t>(e) * words_];
      std::uint64_t inside = 0, outside = 0;
      for (int w = 0; w < words_; ++w) {
        inside |= pins[w] & set[w];
        outside |= pins[w] & ~set[w];
      }
      if (!inside || !outside) continue;
      open_cost_.push_back(graph_.net_cost[e]);
      for (int w = 0; w < words_; ++w) open_masks_.push_back(pins[w] & ~set[w]);
    }
  }

  /// Nets split by the part between the ideal of open_nets and a larger one.
  double crossing(const IdealList::Entry& larger, const std::uint64_t* set) const {
    double ms = larger.cut_ms;
    const std::uint64_t* mask = open_masks_.data();
    for (std::size_t e = 0; e < open_cost_.size(); ++e, mask += words_) {
      std::uint64_t reached = 0, missed = 0;
      for (int w = 0; w < words_; ++w) {
        reached |= mask[w] & set[w];
        missed |= mask[w] & ~set[w];
      }
      if (missed && !reached) ms -= open_cost_[e];
      if (reached && !missed) ms += open_cost_[e];
    }
    return ms;
  }

  bool link(int from, int to, int d) {
    const DeviceClass& device = devices_[d];
    IdealList &a = lists_[from], &b = lists_[to];
    const bool to_last = to == states_.states - 1;
    const double bytes = device.bytes;
    const double reach = threshold_ * problem_.power[d] * slack;
    const double limit = threshold_ * slack;
    std::size_t begin = 0;
    for (int i = 0; i < static_cast<int>(a.entries.size()); ++i) {
      const IdealList::Entry& small = a.entries[i];
      if (small.value > threshold_) continue;
      if ((i & 63) == 0 && !in_time()) return false;
      while (begin < b.entries.size() && b.entries[begin].latency_ms < small.latency_ms / slack)
        ++begin;
      const std::uint64_t* inner = &a.sets[static_cast<std::size_t>(small.set) * words_];
      bool opened = false;
      std::size_t j = begin;
      for (; j < b.entries.size(); ++j) {
        IdealList::Entry& large = b.entries[j];
        double ms = large.latency_ms - small.latency_ms;
        if (ms > reach) break;
        if (device.cpu) ms = large.cpu_ms - small.cpu_ms;
        ms /= device.speed;
        // A net open at one end only is paid in between.
        double least = ms + (device.communicates ? std::abs(large.cut_ms - small.cut_ms) : 0.0);
        if (least > limit || std::max(small.value, least / slack) >= large.value) continue;
        const std::uint64_t* outer = &b.sets[static_cast<std::size_t>(large.set) * words_];
        std::uint64_t extra = 0, lacking = 0;
        for (int w = 0; w < words_; ++w) {
          lacking |= inner[w] & ~outer[w];
          extra |= outer[w] & ~inner[w];
        }
        if (lacking) continue;
        ++certificate_->pairs;
        if (extra && !device.cpu && large.unsupported > small.unsupported) continue;
        bool unlimited = to_last && !problem_.options->limit_last_part;
        if (extra && !unlimited && large.bytes - small.bytes > bytes * slack) continue;
        if (extra && device.communicates) {
          if (!opened) open_nets(inner);
          opened = true;
          ms += crossing(large, outer);
        }
        double value = std::max(small.value, extra ? ms : 0.0);
        if (value >= large.value || value > limit) continue;
        large.value = value;
        large.from_state = from;
        large.from_entry = i;
        large.device = extra ? d : -1;
      }
      looks_left_ -= static_cast<std::int64_t>(j - begin);
      if (looks_left_ < 0) return false;
    }
    return true;
  }

  Assignment trace() const {
    Assignment out;
    out.part.assign(graph_.size(), -1);
    struct Step {
      int state, entry;
    };
    std::vector<Step> steps;
    for (Step s{states_.states - 1, 0}; s.state > 0;) {
      const IdealList::Entry& e = lists_[s.state].entries[s.entry];
      if (e.device >= 0) steps.push_back(s);
      s = {e.from_state, e.from_entry};
    }
    std::reverse(steps.begin(), steps.end());
    for (const Step& s : steps) {
      const IdealList& list = lists_[s.state];
      const IdealList::Entry& e = list.entries[s.entry];
      const std::uint64_t* set = &list.sets[static_cast<std::size_t>(e.set) * words_];
      for (int v = 0; v < graph_.size(); ++v)
        if (out.part[v] < 0 && (set[v / 64] >> (v % 64) & 1))
          out.part[v] = static_cast<int>(out.device.size());
      out.device.push_back(e.device);
    }
    out.objective = lists_.back().entries.front().value;
    return out;
  }

  const Problem& problem_;
  const CutGraph& graph_;
  const std::vector<DeviceClass>& devices_;
  DeviceStates states_;
  double threshold_;
  std::int64_t steps_left_, ideals_left_;
  std::int64_t looks_left_ = 3'000'000'000;  // pairs looked at, a few seconds
  Certificate* certificate_;
  int words_;
  std::vector<IdealList> lists_;
  std::vector<std::uint64_t> pin_masks_, open_masks_;
  std::vector<double> open_cost_;
};

}  // namespace

DeviceStates::DeviceStates(const std::vector<DeviceClass>& devices) {
  for (const DeviceClass& d : devices) {
    stride.push_back(states);
    limit.push_back(d.count);
    states *= d.count + 1;
  }
}

ExactOutcome solve_states(const Problem& problem, double threshold, std::int64_t most_steps,
                          std::int64_t most_ideals, Certificate* certificate) {
  return StateSolver(problem, threshold, most_steps, most_ideals, certificate).run();
}

}  // namespace shardfit::partition
