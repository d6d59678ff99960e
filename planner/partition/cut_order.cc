#include <algorithm>

#include "partition/problem.h"

namespace shardfit::partition {
namespace {

class OrderCutter {
 public:
  OrderCutter(const Problem& problem, const std::vector<int>& order, double most_ms)
      : problem_(problem),
        graph_(*problem.graph),
        devices_(*problem.devices),
        states_(devices_),
        order_(order),
        most_ms_(most_ms),
        n_(graph_.size()),
        cells_(static_cast<std::size_t>(states_.states) * (n_ + 1)) {}

  Assignment run() {
    rest_ms_.assign(n_ + 1, 0);
    for (int i = n_; i > 0; --i) rest_ms_[i - 1] = rest_ms_[i] + problem_.latency[order_[i - 1]];
    power_left_.assign(states_.states, 0);
    for (int s = 0; s < states_.states; ++s)
      for (int d = 0; d < static_cast<int>(devices_.size()); ++d)
        if (const int left = devices_[d].count - states_.used(s, d); left > 0)
          power_left_[s] += left * problem_.power[d];
    cell(0, 0).value = 0;
    std::vector<int> held(graph_.net_cost.size());
    for (int from = 0; from <= n_; ++from) {
      if (!open_states(from)) continue;
      std::fill(held.begin(), held.end(), 0);
      extend(from, &held);
    }
    return trace();
  }

 private:
  struct Cell {
    double value = infinity;
    int from = -1;
    int device = -1;  // -1: this device stays empty
    int state = -1;
  };
  Cell& cell(int state, int at) {
    return cells_[static_cast<std::size_t>(at) * states_.states + state];
  }

  /// Lets devices stay empty; lists the states that reach this prefix within the limit.
  bool open_states(int at) {
    reached_.clear();
    for (int s = 0; s < states_.states; ++s) {
      for (int d = 0; d < static_cast<int>(devices_.size()); ++d) {
        if (states_.used(s, d) == 0) continue;
        const Cell& before = cell(s - states_.stride[d], at);
        if (before.value < cell(s, at).value)
          cell(s, at) = {before.value, at, -1, s - states_.stride[d]};
      }
      // Of no use where the devices left cannot work off the rest within the limit.
      if (cell(s, at).value <= most_ms_ && rest_ms_[at] <= most_ms_ * power_left_[s] * slack)
        reached_.push_back(s);
    }
    return !reached_.empty();
  }

  void extend(int from, std::vector<int>* held) {
    double communication = 0, bytes = 0;
    const int classes = static_cast<int>(devices_.size());
    std::vector<double> latency(classes, 0.0);
    bool supported = true;
    for (int to = from + 1; to <= n_; ++to) {
      int v = order_[to - 1];
      bytes += graph_.units[v].bytes;
      supported = supported && graph_.units[v].accelerator_supported;
      for (const int* e = graph_.unit_nets.first(v); e != graph_.unit_nets.last(v); ++e) {
        int& h = (*held)[*e];
        if (h == 0) communication += graph_.net_cost[*e];
        if (++h == graph_.net_pins.count(*e)) communication -= graph_.net_cost[*e];
      }
      bool alive = false;
      for (int d = 0; d < classes; ++d) {
        latency[d] += problem_.latency_on(d, v);
        if (latency[d] > most_ms_ * slack) continue;
        alive = true;
        const DeviceClass& device = devices_[d];
        if (!device.cpu && !supported) continue;
        bool unlimited = to == n_ && !problem_.options->limit_last_part;
        if (!unlimited && bytes > device.bytes * slack) continue;
        double load = latency[d] + (device.communicates ? communication : 0.0);
        if (load > most_ms_ * slack) continue;
        for (int s : reached_) {
          if (states_.used(s, d) == device.count) continue;
          double value = std::max(cell(s, from).value, load);
          Cell& next = cell(s + states_.stride[d], to);
          if (value < next.value) next = {value, from, d, s};
        }
      }
      if (!alive) break;
    }
  }

  Assignment trace() {
    Assignment out;
    int state = states_.states - 1, at = n_;
    if (cell(state, at).value == infinity) return out;
    out.objective = cell(state, at).value;
    out.part.assign(n_, -1);
    std::vector<std::pair<int, std::pair<int, int>>> parts;  // device, [from, to)
    while (state != 0) {
      const Cell& c = cell(state, at);
      if (c.device >= 0) parts.push_back({c.device, {c.from, at}});
      at = c.from;
      state = c.state;
    }
    std::reverse(parts.begin(), parts.end());
    for (auto& [device, range] : parts) {
      for (int i = range.first; i < range.second; ++i)
        out.part[order_[i]] = static_cast<int>(out.device.size());
      out.device.push_back(device);
    }
    return out;
  }

  const Problem& problem_;
  const CutGraph& graph_;
  const std::vector<DeviceClass>& devices_;
  DeviceStates states_;
  const std::vector<int>& order_;
  double most_ms_;
  int n_;
  std::vector<Cell> cells_;
  std::vector<int> reached_;
  std::vector<double> rest_ms_;     // by prefix: latency after it
  std::vector<double> power_left_;  // by state: of the devices not used
};

}  // namespace

Assignment cut_order(const Problem& problem, const std::vector<int>& order, double most_ms) {
  return OrderCutter(problem, order, most_ms).run();
}

}  // namespace shardfit::partition
