#include "partition/recompute.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace shardfit::partition {
namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}

SlotChain to_slots(const ChainInstance& chain, int slots) {
  SlotChain out;
  double total = 0;
  for (double bytes : chain.saved_bytes) total += bytes;
  out.unit_bytes = total > 0 ? total / slots : 1;
  auto whole = [&](double bytes) {
    return std::max(1, static_cast<int>(std::ceil(bytes / out.unit_bytes)));
  };
  out.forward_ms = chain.forward_ms;
  out.backward_ms = chain.backward_ms;
  for (int i = 0; i < chain.length(); ++i) {
    out.out.push_back(whole(chain.out_bytes[i]));
    out.saved.push_back(whole(chain.saved_bytes[i]));
  }
  return out;
}

RecomputeTable::RecomputeTable(SlotChain chain, int most_slots)
    : chain_(std::move(chain)), most_slots_(most_slots) {
  const int n = chain_.length();
  forward_sum_.assign(n + 1, 0);
  for (int i = 0; i < n; ++i) forward_sum_[i + 1] = forward_sum_[i] + chain_.forward_ms[i];
  table_.assign(static_cast<std::size_t>(n) * n * (most_slots + 1), infinity);
  for (int length = 1; length <= n; ++length)
    for (int i = 0; i + length <= n; ++i) fill(i, i + length - 1);
}

/// Below this not even the forward over the interval fits.
int RecomputeTable::least_slots(int i, int l) const {
  if (i == l) return chain_.in(i) + chain_.saved[i] + chain_.out[i];
  int most = chain_.out[i];
  for (int j = i + 1; j < l; ++j) most = std::max(most, chain_.in(j) + chain_.out[j]);
  return chain_.out[l] + most;
}

void RecomputeTable::fill(int i, int l) {
  const int least = least_slots(i, l);
  double* cells = &table_[offset(i, l)];
  const double own = chain_.forward_ms[i] + chain_.backward_ms[i];
  if (i == l) {
    for (int s = least; s <= most_slots_; ++s) cells[s] = own;
    return;
  }
  const double* rest = row(i + 1, l);
  // Its own backward comes at the end and has to fit as well.
  for (int s = std::max(least, least_slots(i, i)); s <= most_slots_; ++s)
    cells[s] = own + rest[s - chain_.saved[i]];
  for (int j = i + 1; j <= l; ++j) {
    const int kept = chain_.in(j);
    const double again = forward_sum_[j] - forward_sum_[i];
    const double *right = row(j, l) - kept, *left = row(i, j - 1);
    for (int s = std::max(least, kept); s <= most_slots_; ++s)
      cells[s] = std::min(cells[s], again + right[s] + left[s]);
  }
}

double RecomputeTable::ms(int first, int last, int slots) const {
  if (slots < 0) return infinity;
  return row(first, last)[std::min(slots, most_slots_)];
}

int RecomputeTable::fewest_slots(int first, int last, double ms) const {
  const double* cells = row(first, last);  // never rises with the slots
  const double* at =
      std::partition_point(cells, cells + most_slots_ + 1, [&](double cell) { return cell > ms; });
  return at == cells + most_slots_ + 1 ? -1 : static_cast<int>(at - cells);
}

std::vector<ChainStep> RecomputeTable::sequence(int first, int last, int slots) const {
  std::vector<ChainStep> steps;
  if (ms(first, last, slots) < infinity) trace(first, last, std::min(slots, most_slots_), &steps);
  return steps;
}

/// The table keeps times only: the choice is found again by evaluating the same sums.
void RecomputeTable::trace(int i, int l, int slots, std::vector<ChainStep>* steps) const {
  using Kind = ChainStep::Kind;
  if (i == l) {
    steps->push_back({Kind::forward_save, i});
    steps->push_back({Kind::backward, i});
    return;
  }
  const double best = row(i, l)[slots];
  const double own = chain_.forward_ms[i] + chain_.backward_ms[i];
  if (slots >= least_slots(i, i) && own + row(i + 1, l)[slots - chain_.saved[i]] == best) {
    steps->push_back({Kind::forward_save, i});
    trace(i + 1, l, slots - chain_.saved[i], steps);
    steps->push_back({Kind::backward, i});
    return;
  }
  for (int j = i + 1; j <= l; ++j) {
    const int kept = chain_.in(j);
    if (slots < kept) continue;
    const double again = forward_sum_[j] - forward_sum_[i];
    if (again + row(j, l)[slots - kept] + row(i, j - 1)[slots] != best) continue;
    steps->push_back({Kind::forward_keep, i});
    for (int k = i + 1; k < j; ++k) steps->push_back({Kind::forward_drop, k});
    trace(j, l, slots - kept, steps);
    trace(i, j - 1, slots, steps);
    return;
  }
  assert(false && "a finite cell has a choice");
}

ChainSplit split_chain(const RecomputeTable& table, int stages, int budget, int microbatches) {
  const SlotChain& chain = table.chain();
  const int n = chain.length();
  struct Cell {
    double value = infinity;
    ChainStage stage;
  };
  // best[r][i]: layers i .. n - 1 in exactly r stages.
  std::vector<std::vector<Cell>> best(stages + 1, std::vector<Cell>(n + 1));
  best[0][n].value = 0;
  for (int r = 1; r <= stages; ++r) {
    const int in_flight = std::min(r, microbatches);
    for (int i = 0; i < n; ++i) {
      double base = 0, forward = 0;
      int saved = 0;
      for (int j = i; j < n; ++j) {
        forward += chain.forward_ms[j];
        base += chain.forward_ms[j] + chain.backward_ms[j];
        saved += chain.saved[j];
        const double later = best[r - 1][j + 1].value;
        Cell& cell = best[r][i];
        if (later >= cell.value) continue;
        // Waiting micro-batches hold their input beside what they save.
        const int all = budget - (in_flight - 1) * (saved + chain.in(i)) - chain.in(i);
        const int input = budget - in_flight * chain.in(i);
        ChainStage all_kept{i, j, in_flight, true, base, all};
        ChainStage input_kept{
            i, j, in_flight, false, table.ms(i, j, input) + (in_flight > 1 ? forward : 0.0), input};
        if (table.ms(i, j, all) > base)
          all_kept.ms = in_flight > 1 ? infinity : table.ms(i, j, all);
        for (const ChainStage& stage : {all_kept, input_kept}) {
          const double value = std::max(later, stage.ms);
          if (value < cell.value) cell = {value, stage};
        }
      }
    }
  }
  ChainSplit out;
  out.objective_ms = infinity;
  int used = 0;
  for (int r = 1; r <= stages; ++r)
    if (best[r][0].value < out.objective_ms) {
      out.objective_ms = best[r][0].value;
      used = r;
    }
  out.feasible = used > 0;
  for (int r = used, i = 0; r > 0; --r) {
    out.stages.push_back(best[r][i].stage);
    i = best[r][i].stage.last + 1;
  }
  return out;
}

}  // namespace shardfit::partition
