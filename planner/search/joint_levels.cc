// Of a search: which blocks recompute their forward where some do.

#include <algorithm>
#include <cmath>

#include "search/block_levels.h"
#include "search/joint_space.h"

namespace shardfit::search {

const JointSpace::Levels& JointSpace::levels(std::size_t way, std::int64_t micro) {
  const auto [at, fresh] = levels_.try_emplace({way, micro});
  Levels& own = at->second;
  if (!fresh) return own;
  const bool megatron = ways_[way].job.job.megatron.has_value();  // its layers are alike
  if (times_ && !megatron && policies_.front().kind == program::Recompute::none) {
    const std::size_t full = policies_.size() - 1;
    const partition::BlockChain chain =
        block_chain(one_pass(way, 0, micro), one_pass(way, full, micro), units_, *times_);
    if (!uniform(chain)) own.sets = block_levels(chain);
  }
  own.chosen = static_cast<std::int64_t>(own.sets.size());
  std::vector<std::int64_t> first;
  for (std::int64_t n = 0; n + 1 < units_of(way); ++n) {
    first.push_back(n);
    own.sets.push_back(first);
  }
  return own;
}

void JointSpace::set_level(Point& point, std::int64_t level) {
  point.blocks = level;
  const auto& set =
      levels(point.way, point.configuration.micro_batch).sets[static_cast<std::size_t>(level) - 1];
  point.configuration.recompute.policy = are_first(set)
                                             ? "first-" + std::to_string(set.size()) + "-blocks"
                                             : "blocks-" + block_words(set);
}

bool JointSpace::lessen(Point& point) {
  const std::int64_t chosen = levels(point.way, point.configuration.micro_batch).chosen;
  if (point.blocks <= 1 || point.blocks == chosen + 1) return false;
  set_level(point, point.blocks - 1);
  point.found.reset();
  return true;
}

/// The least of the levels `from` .. `to` that makes it fit: later ones keep less. The middle of
/// what is possible is first guessed from the bytes without and with all blocks.
void JointSpace::run_levels(Point& point, std::int64_t from, std::int64_t to, bool needed) {
  const std::int64_t micro = point.configuration.micro_batch;
  const auto without = static_cast<double>(probe(point.way, 0, micro).requested);
  const auto with = static_cast<double>(probe(point.way, policies_.size() - 1, micro).requested);
  const double over = without - static_cast<double>(budget(point));
  double part = without > with ? over / (without - with) : 0.5;
  std::int64_t good = to + 1, bad = from - 1;  // neither was run
  const auto count = static_cast<double>(good - bad);
  std::int64_t guess =
      bad + static_cast<std::int64_t>(std::ceil(std::clamp(part, 0.0, 1.0) * count));
  while (good - bad > 1) {
    guess = std::clamp(guess, bad + 1, good - 1);
    run_as(point, guess, false, false);
    const bool fits = point.found->verdict == Verdict::fits;
    (fits ? good : bad) = guess;
    // Beside the first guess lies the answer mostly; then halves.
    guess = good - bad > 4 && part >= 0 ? (fits ? guess - 1 : guess + 1) : bad + (good - bad) / 2;
    part = -1;
  }
  set_level(point, std::min(good, to));
  run_as(point, point.blocks, needed, true);
}

/// The exact choices stand on single passes: a run of both kinds decides.
void JointSpace::run_blocks(Point& point, bool needed) {
  const Levels& own = levels(point.way, point.configuration.micro_batch);
  const auto all = static_cast<std::int64_t>(own.sets.size());
  Point first = point;
  run_levels(first, own.chosen + 1, all, needed);
  if (own.chosen == 0) {
    point = std::move(first);
    return;
  }
  run_levels(point, 1, own.chosen, needed);
  const auto rank = [](const Point& one) {
    return std::pair(one.found->verdict != Verdict::fits, one.found->step_seconds.value_or(0));
  };
  if (rank(first) < rank(point)) point = std::move(first);
}

}  // namespace shardfit::search
