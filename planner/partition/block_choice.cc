#include "partition/block_choice.h"

#include <algorithm>

namespace shardfit::partition {
namespace {

/// What the blocks so far keep, and how it came about.
struct State {
  std::int64_t kept = 0;
  double seconds = 0;
  std::int32_t before = -1;  // in the list before
  bool again = false;
};

/// Longer lists are thinned out: then a choice may take a little more time than it must.
constexpr std::size_t most_states = 1 << 14;

/// Those that no other beats in bytes and seconds; where both are equal, the first.
void keep_best(std::vector<State>& states) {
  std::stable_sort(states.begin(), states.end(), [](const State& a, const State& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.kept < b.kept;
  });
  std::vector<State> best;
  for (const State& state : states) {
    if (best.empty() || state.kept < best.back().kept) best.push_back(state);
  }
  if (best.size() > most_states) {
    const std::size_t stride = (best.size() + most_states - 1) / most_states;
    std::vector<State> thin;
    for (std::size_t i = 0; i + 1 < best.size(); i += stride) thin.push_back(best[i]);
    thin.push_back(best.back());  // the one that keeps least decides what can be
    best = std::move(thin);
  }
  states = std::move(best);
}

}  // namespace

std::int64_t bytes_of(const BlockChain& chain, const std::vector<std::int64_t>& again) {
  std::int64_t kept = 0, most = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < chain.blocks.size(); ++i) {
    const BlockCost& block = chain.blocks[i];
    most = std::max(most, kept + block.saved + block.beside);
    const bool run_again = next < again.size() && again[next] == static_cast<std::int64_t>(i);
    if (run_again) ++next;
    kept += run_again ? block.kept : block.saved;
  }
  return std::max(most, kept + chain.beside);
}

std::optional<BlockChoice> choose_blocks(const BlockChain& chain, std::int64_t budget) {
  std::vector<std::vector<State>> lists(1, std::vector<State>(1));
  for (const BlockCost& block : chain.blocks) {
    std::vector<State> next;
    const std::vector<State>& from = lists.back();
    for (const bool again : {false, true}) {  // of equal choices the first is kept: early blocks
      for (std::size_t i = 0; i < from.size(); ++i) {
        if (from[i].kept + block.saved + block.beside > budget) continue;
        next.push_back({from[i].kept + (again ? block.kept : block.saved),
                        from[i].seconds + (again ? block.again_seconds : 0),
                        static_cast<std::int32_t>(i), again});
      }
    }
    keep_best(next);
    lists.push_back(std::move(next));
  }
  const std::vector<State>& last = lists.back();
  const auto fits = std::find_if(last.begin(), last.end(), [&](const State& state) {
    return state.kept + chain.beside <= budget;
  });
  if (fits == last.end()) return {};
  BlockChoice out;
  out.seconds = fits->seconds;
  auto at = static_cast<std::int32_t>(fits - last.begin());
  for (std::size_t i = chain.blocks.size(); i > 0; --i) {
    const State& state = lists[i][static_cast<std::size_t>(at)];
    if (state.again) out.again.push_back(static_cast<std::int64_t>(i) - 1);
    at = state.before;
  }
  std::reverse(out.again.begin(), out.again.end());
  out.bytes = bytes_of(chain, out.again);
  return out;
}

}  // namespace shardfit::partition
