#include "spec/graph_order.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

namespace shardfit::spec {
namespace {

constexpr std::size_t shown_of_cycle = 8;

/// Kahn's algorithm; of several that may run the one that stands first. What is left out is in a
/// cycle or behind one.
std::vector<std::int32_t> order_of(const GraphScope& scope) {
  const std::size_t n = scope.operators.size();
  std::vector<std::int32_t> waits(n, 0);
  // Readers of operator i: those from first[i] to first[i + 1].
  std::vector<std::size_t> first(n + 2, 0);
  const auto for_each_read = [&](const auto& visit) {
    for (std::size_t i = 0; i < n; ++i) {
      for (const std::int32_t input : scope.operators[i].inputs) {
        if (input >= 0) visit(static_cast<std::size_t>(input), i);
      }
    }
  };
  for_each_read([&](std::size_t input, std::size_t i) {
    ++first[input + 2];
    ++waits[i];
  });
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<std::int32_t> readers(first.back());
  for_each_read([&](std::size_t input, std::size_t i) {
    readers[first[input + 1]++] = static_cast<std::int32_t>(i);
  });
  std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < n; ++i) {
    if (waits[i] == 0) ready.push(static_cast<std::int32_t>(i));
  }
  std::vector<std::int32_t> order;
  order.reserve(n);
  while (!ready.empty()) {
    const std::int32_t next = ready.top();
    ready.pop();
    order.push_back(next);
    const auto at = static_cast<std::size_t>(next);
    for (std::size_t r = first[at]; r < first[at + 1]; ++r) {
      const std::int32_t reader = readers[r];
      if (--waits[static_cast<std::size_t>(reader)] == 0) ready.push(reader);
    }
  }
  return order;
}

/// Each of those left waits for another of them: walking back from one ends in a cycle.
void report_cycle(const GraphScope& scope, const std::vector<std::int32_t>& order,
                  Diagnostics& faults) {
  std::vector<bool> left(scope.operators.size(), true);
  for (const std::int32_t i : order) left[static_cast<std::size_t>(i)] = false;
  const auto waits_for = [&](std::size_t i) {
    for (const std::int32_t input : scope.operators[i].inputs) {
      if (input >= 0 && left[static_cast<std::size_t>(input)])
        return static_cast<std::size_t>(input);
    }
    return i;
  };
  auto at = static_cast<std::size_t>(std::find(left.begin(), left.end(), true) - left.begin());
  std::vector<bool> seen(scope.operators.size(), false);
  while (!seen[at]) {
    seen[at] = true;
    at = waits_for(at);
  }
  std::vector<std::size_t> cycle{at};
  for (std::size_t next = waits_for(at); next != at; next = waits_for(next)) cycle.push_back(next);
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  const GraphOperator& first = scope.operators[cycle.front()];
  if (cycle.size() == 1) {
    faults.error(first.where, quoted(first.name) + " reads itself");
    return;
  }
  std::string path = quoted(first.name);
  for (std::size_t i = 1; i < std::min(cycle.size(), shown_of_cycle); ++i) {
    path += " reads " + quoted(scope.operators[cycle[i]].name) + ", which";
  }
  if (cycle.size() > shown_of_cycle) {
    path += " in " + std::to_string(cycle.size() - shown_of_cycle) + " further steps";
  }
  path += " reads " + quoted(first.name);
  faults.error(first.where, "a cycle of " + std::to_string(cycle.size()) + " operators: " + path,
               {"what an earlier pass gave is written as a loop: 'repeat'"});
}

void report_unread(const GraphScope& scope, Diagnostics& faults) {
  std::vector<bool> read(scope.operators.size(), false);
  const auto mark = [&](const std::vector<std::int32_t>& values) {
    for (const std::int32_t value : values) {
      if (value >= 0) read[static_cast<std::size_t>(value)] = true;
    }
  };
  for (const GraphOperator& op : scope.operators) mark(op.inputs);
  mark(scope.results);
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (read[i]) continue;
    const GraphOperator& op = scope.operators[i];
    faults.error(op.where, "nothing reads " + quoted(op.name),
                 {"what is kept without being read stands in the list 'outputs' of the graph"});
  }
}

/// Each operator stands after what it reads.
bool is_sorted(const GraphScope& scope) {
  std::int32_t at = 0;
  for (const GraphOperator& op : scope.operators) {
    for (const std::int32_t input : op.inputs) {
      if (input >= at) return false;
    }
    ++at;
  }
  return true;
}

}  // namespace

void sort_operators(GraphScope& scope, Diagnostics& faults) {
  if (is_sorted(scope)) {
    if (faults.empty()) report_unread(scope, faults);
    return;
  }
  const std::vector<std::int32_t> order = order_of(scope);
  if (order.size() < scope.operators.size()) return report_cycle(scope, order, faults);
  if (faults.empty()) report_unread(scope, faults);
  std::vector<std::int32_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
  }
  std::vector<GraphOperator> sorted(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    sorted[i] = std::move(scope.operators[static_cast<std::size_t>(order[i])]);
    for (std::int32_t& input : sorted[i].inputs) {
      if (input >= 0) input = place[static_cast<std::size_t>(input)];
    }
  }
  scope.operators = std::move(sorted);
  for (std::int32_t& result : scope.results) {
    if (result >= 0) result = place[static_cast<std::size_t>(result)];
  }
}

}  // namespace shardfit::spec
