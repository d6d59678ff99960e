#include "partition/offsets.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>

#include "partition/problem.h"

namespace shardfit::partition {
namespace {

/// Buffers over sections: stretches of time in which the live set does not change.
struct Layout {
  int buffers = 0, sections = 0;
  std::vector<int> begin, end;  // by buffer, sections it lives in
  std::vector<std::int64_t> size, length;
  std::vector<std::vector<int>> alive;     // by section
  std::vector<std::vector<int>> overlaps;  // by buffer
  std::int64_t live_peak = 0;
};

Layout make_layout(const BufferInstance& instance) {
  Layout out;
  out.buffers = static_cast<int>(instance.buffers.size());
  std::vector<std::int64_t> times;
  for (const BufferInstance::Buffer& b : instance.buffers) {
    times.push_back(b.lower);
    times.push_back(b.upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  auto section = [&](std::int64_t t) {
    return static_cast<int>(std::lower_bound(times.begin(), times.end(), t) - times.begin());
  };
  out.sections = times.empty() ? 0 : static_cast<int>(times.size()) - 1;
  out.alive.resize(out.sections);
  out.overlaps.resize(out.buffers);
  for (int b = 0; b < out.buffers; ++b) {
    out.begin.push_back(section(instance.buffers[b].lower));
    out.end.push_back(section(instance.buffers[b].upper));
    out.size.push_back(instance.buffers[b].size);
    out.length.push_back(instance.buffers[b].upper - instance.buffers[b].lower);
    for (int s = out.begin[b]; s < out.end[b]; ++s) out.alive[s].push_back(b);
  }
  for (int s = 0; s < out.sections; ++s) {
    std::int64_t live = 0;
    for (int b : out.alive[s]) live += out.size[b];
    out.live_peak = std::max(out.live_peak, live);
  }
  for (int a = 0; a < out.buffers; ++a)
    for (int b = 0; b < out.buffers; ++b)
      if (a != b && out.begin[a] < out.end[b] && out.begin[b] < out.end[a])
        out.overlaps[a].push_back(b);
  return out;
}

/// What decides between buffers at the same place, largest first: length of life, area (length x
/// size), most bytes left in any section it lives in, size.
enum class Key { length, area, total, size };
using Preference = std::array<Key, 3>;

const std::vector<Preference> preferences{{Key::length, Key::area, Key::total},
                                          {Key::total, Key::area, Key::length},
                                          {Key::total, Key::length, Key::area},
                                          {Key::size, Key::length, Key::total}};

/// A preference with its keys scaled by a random factor a buffer, so that restarts differ.
struct Taste {
  Preference keys;
  std::vector<double> factor;  // by buffer, near 1
  bool renewed = true;         // ranks are made anew for every part the problem falls into
};

/// Sorts buffers by taste; `left` is what each section still has to hold.
void sort_by(const Layout& l, const Taste& taste, const std::vector<std::int64_t>& left,
             std::vector<int>* buffers) {
  std::vector<std::array<double, 3>> keys(l.buffers);
  for (int b : *buffers)
    for (std::size_t k = 0; k < taste.keys.size(); ++k) {
      double value = static_cast<double>(l.size[b]);
      if (taste.keys[k] == Key::length) value = static_cast<double>(l.length[b]);
      if (taste.keys[k] == Key::area) value *= static_cast<double>(l.length[b]);
      if (taste.keys[k] == Key::total)
        value = static_cast<double>(
            *std::max_element(left.begin() + l.begin[b], left.begin() + l.end[b]));
      keys[b][k] = value * taste.factor[b];
    }
  std::sort(buffers->begin(), buffers->end(),
            [&](int a, int b) { return keys[a] != keys[b] ? keys[a] > keys[b] : a < b; });
}

/// Depth-first search for a placement under one capacity, by one taste.
class PlacementSearch {
 public:
  PlacementSearch(const Layout& layout, std::int64_t capacity, const Taste& taste,
                  std::int64_t steps, double deadline)
      : l_(layout),
        capacity_(capacity),
        taste_(taste),
        steps_left_(steps),
        deadline_(deadline),
        lowest_(layout.buffers, 0),
        placed_(layout.buffers, 0),
        rank_(layout.buffers) {}

  /// True: `offsets()` fits. False with stopped(): unknown.
  bool run() {
    left_.assign(l_.sections, 0);
    for (int s = 0; s < l_.sections; ++s) {
      for (int b : l_.alive[s]) left_[s] += l_.size[b];
      if (!section_fits(s, 0)) return false;
    }
    std::vector<int> all(l_.buffers);
    std::iota(all.begin(), all.end(), 0);
    std::stable_sort(all.begin(), all.end(),
                     [&](int a, int b) { return l_.begin[a] < l_.begin[b]; });
    set_ranks(all);
    return place_components(std::move(all), {0, -1});
  }
  bool stopped() const { return stopped_; }
  std::int64_t steps_left() const { return steps_left_; }
  const std::vector<std::int64_t>& offsets() const { return lowest_; }

 private:
  /// The buffer placed last in a component: the next one is no lower, and of those at the same
  /// offset none comes before it in the order of preference.
  struct Last {
    std::int64_t offset;
    int rank;
  };

  void set_ranks(std::vector<int> buffers) {
    sort_by(l_, taste_, left_, &buffers);
    for (int i = 0; i < static_cast<int>(buffers.size()); ++i) rank_[buffers[i]] = i;
  }

  /// Buffers, in order of their beginnings, that are joined in time, directly or through others,
  /// must be placed together; others are independent.
  bool place_components(std::vector<int> buffers, Last last) {
    int end = l_.end[buffers.front()];
    bool joined = true;
    for (int b : buffers) {
      joined = joined && l_.begin[b] < end;
      end = std::max(end, l_.end[b]);
    }
    if (joined) return place(buffers, last);
    std::vector<std::vector<int>> components;
    end = -1;
    for (int b : buffers) {
      if (components.empty() || l_.begin[b] >= end) components.emplace_back();
      components.back().push_back(b);
      end = std::max(end, l_.end[b]);
    }
    // The smallest first: a failure there is cheap.
    std::stable_sort(components.begin(), components.end(),
                     [](const auto& a, const auto& b) { return a.size() < b.size(); });
    const std::size_t mark = undo_.size();
    const std::vector<int> ranks = rank_;
    for (const std::vector<int>& component : components) {
      if (taste_.renewed) set_ranks(component);
      if (place(component, {last.offset, taste_.renewed ? -1 : last.rank})) continue;
      undo_to(mark);
      rank_ = ranks;
      return false;
    }
    rank_ = ranks;
    return true;
  }

  bool place(const std::vector<int>& buffers, Last last) {
    std::int64_t first_top = std::numeric_limits<std::int64_t>::max();
    for (int b : buffers) first_top = std::min(first_top, lowest_[b] + l_.size[b]);
    std::vector<int> candidates;
    for (int b : buffers) {
      const bool in_order =
          lowest_[b] > last.offset || (lowest_[b] == last.offset && rank_[b] > last.rank);
      // From first_top on another buffer fits wholly below: some better placement puts it there.
      if (in_order && (lowest_[b] < first_top || l_.size[b] == 0)) candidates.push_back(b);
    }
    std::sort(candidates.begin(), candidates.end(), [&](int a, int b) {
      return lowest_[a] != lowest_[b] ? lowest_[a] < lowest_[b] : rank_[a] < rank_[b];
    });
    for (int b : candidates) {
      if (--steps_left_ <= 0 || ((steps_left_ & 255) == 0 && cpu_seconds() > deadline_)) {
        stopped_ = true;
        return false;
      }
      const std::size_t mark = undo_.size();
      std::vector<int> rest;
      for (int other : buffers)
        if (other != b) rest.push_back(other);
      const Last now{lowest_[b], rank_[b]};
      const bool fits = put(b, rest);
      const bool raised = undo_.size() > mark + 1;
      if (fits && (rest.empty() || place_components(std::move(rest), now))) return true;
      undo_to(mark);
      // Nothing had to move up for it: it was not in the way.
      if (stopped_ || !raised) return false;
    }
    return false;
  }

  /// Fixes a buffer at its lowest place; those alive with it start above it. False where a point in
  /// time can no longer hold what is left.
  bool put(int b, const std::vector<int>& rest) {
    const std::int64_t offset = lowest_[b], top = offset + l_.size[b];
    placed_[b] = 1;
    undo_.push_back({b, -1});
    int begin = l_.begin[b], end = l_.end[b];
    for (int s = begin; s < end; ++s) left_[s] -= l_.size[b];
    touched_.assign(l_.sections, 0);
    for (int s = begin; s < end; ++s) touched_[s] = 1;
    for (int other : rest) {
      begin = std::min(begin, l_.begin[other]);
      end = std::max(end, l_.end[other]);
      if (l_.begin[other] >= l_.end[b] || l_.begin[b] >= l_.end[other]) continue;
      if (lowest_[other] >= top) continue;
      undo_.push_back({other, lowest_[other]});
      lowest_[other] = top;
      if (top + l_.size[other] > capacity_) return false;
      for (int s = l_.begin[other]; s < l_.end[other]; ++s) touched_[s] = 1;
    }
    for (int s = begin; s < end; ++s)
      if (left_[s] > 0 && offset + left_[s] > capacity_) return false;
    for (bool more = true; more;) {
      more = false;
      for (int s = begin; s < end; ++s) {
        if (!touched_[s]) continue;
        touched_[s] = 0;
        if (stacks_anyhow(s, offset)) continue;
        if (!section_fits(s, offset)) return false;
        if (left_[s] > 0 && !lift_late(s, offset)) return false;
      }
      for (int s = begin; s < end && !more; ++s) more = touched_[s] != 0;
    }
    return true;
  }

  /// What is left in a section fits above the highest of its lowest places: in any order then.
  bool stacks_anyhow(int s, std::int64_t floor) const {
    std::int64_t highest = floor;
    for (int b : l_.alive[s])
      if (!placed_[b]) highest = std::max(highest, lowest_[b]);
    return highest + left_[s] <= capacity_;
  }

  /// A buffer that does not fit below some others of its section starts above the lowest top of
  /// those ("not first", Carlier and Pinson 1989): the others are taken from the highest top down,
  /// the fewest that do not fit above it. False where it no longer fits.
  bool lift_late(int s, std::int64_t floor) {
    tops_.clear();
    for (int b : l_.alive[s])
      if (!placed_[b]) tops_.emplace_back(std::max(lowest_[b], floor) + l_.size[b], b);
    std::sort(tops_.begin(), tops_.end(),
              [](const auto& a, const auto& b) { return a.first > b.first; });
    sums_.resize(tops_.size());  // of the sizes of a top and those above it
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < tops_.size(); ++i) sums_[i] = sum += l_.size[tops_[i].second];
    for (std::size_t i = 0; i < tops_.size(); ++i) {
      const auto [own_top, a] = tops_[i];
      const std::int64_t room = capacity_ - own_top;
      if (left_[s] - l_.size[a] <= room) continue;
      // Without its own size, which is in the sums from its own place on.
      const auto own = sums_.begin() + static_cast<std::ptrdiff_t>(i);
      auto first = std::upper_bound(sums_.begin(), own, room);
      if (first == own) first = std::upper_bound(own + 1, sums_.end(), room + l_.size[a]);
      const std::int64_t top = tops_[static_cast<std::size_t>(first - sums_.begin())].first;
      if (lowest_[a] >= top) continue;
      undo_.push_back({a, lowest_[a]});
      lowest_[a] = top;
      if (top + l_.size[a] > capacity_) return false;
      for (int t = l_.begin[a]; t < l_.end[a]; ++t) touched_[t] = 1;
    }
    return true;
  }

  /// What is left in a section, stacked by lowest place from `floor` on: one machine with release
  /// times.
  bool section_fits(int s, std::int64_t floor) {
    stack_.clear();
    for (int b : l_.alive[s])
      if (!placed_[b]) stack_.emplace_back(lowest_[b], l_.size[b]);
    if (stack_.empty()) return true;
    std::sort(stack_.begin(), stack_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::int64_t top = floor;
    for (auto [low, size] : stack_) top = std::max(top, low) + size;
    return top <= capacity_;
  }

  void undo_to(std::size_t mark) {
    while (undo_.size() > mark) {
      auto [b, value] = undo_.back();
      undo_.pop_back();
      if (value >= 0) {
        lowest_[b] = value;
        continue;
      }
      placed_[b] = 0;
      for (int s = l_.begin[b]; s < l_.end[b]; ++s) left_[s] += l_.size[b];
    }
  }

  const Layout& l_;
  std::int64_t capacity_;
  const Taste& taste_;
  std::int64_t steps_left_;
  double deadline_;
  bool stopped_ = false;
  std::vector<std::int64_t> lowest_;
  std::vector<char> placed_, touched_;
  std::vector<int> rank_;
  std::vector<std::int64_t> left_;                  // by section, sizes not placed
  std::vector<std::pair<int, std::int64_t>> undo_;  // buffer, old lowest place; -1: it was placed
  std::vector<std::pair<std::int64_t, std::int64_t>> stack_;
  std::vector<std::pair<std::int64_t, int>> tops_;
  std::vector<std::int64_t> sums_;
};

/// Each buffer in turn at the lowest place free among those before it.
std::vector<std::int64_t> first_fit(const Layout& l, const std::vector<int>& order) {
  std::vector<std::int64_t> offsets(l.buffers, -1);
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (int b : order) {
    taken.clear();
    for (int other : l.overlaps[b])
      if (offsets[other] >= 0) taken.emplace_back(offsets[other], offsets[other] + l.size[other]);
    std::sort(taken.begin(), taken.end());
    std::int64_t at = 0;
    for (auto [low, top] : taken) {
      if (low >= at + l.size[b]) break;
      at = std::max(at, top);
    }
    offsets[b] = at;
  }
  return offsets;
}

std::int64_t peak_of(const Layout& l, const std::vector<std::int64_t>& offsets) {
  std::int64_t peak = 0;
  for (int b = 0; b < l.buffers; ++b) peak = std::max(peak, offsets[b] + l.size[b]);
  return peak;
}

enum class Answer { found, impossible, unknown };

constexpr std::int64_t pass_steps = 6'000'000;  // of the first pass

constexpr int tastes_a_round = 8;

/// Restarts alternate between rounds of plain preferences and rounds that stray from them.
Taste taste_of(const Layout& l, int restart, std::mt19937_64* random) {
  Taste taste{preferences[restart / 2 % preferences.size()], std::vector<double>(l.buffers, 1.0),
              restart % 2 == 0};
  const int round = restart / tastes_a_round;
  if (round % 2 == 0) return taste;
  const double spread = 0.1 * (1 + round / 2 % 8);
  for (double& f : taste.factor)
    f += spread * (static_cast<double>((*random)() >> 11) * 0x1p-53 - 0.5);
  return taste;
}

/// Restarts by many tastes: search times are heavy-tailed, so a bad start must cost little.
Answer try_capacity(const Layout& l, std::int64_t capacity, std::int64_t steps, double deadline,
                    OffsetResult* result) {
  std::mt19937_64 random(1);
  for (int restart = 0; steps > 0; ++restart) {
    const std::int64_t unit = 10 * l.buffers;
    const std::int64_t allowed =
        std::min(unit << std::min(40, restart / tastes_a_round / 2), steps);
    const Taste taste = taste_of(l, restart, &random);
    PlacementSearch search(l, capacity, taste, allowed, deadline);
    const bool found = search.run();
    result->steps += allowed - search.steps_left();
    steps -= allowed - search.steps_left();
    if (found) {
      result->offsets = search.offsets();
      result->peak = peak_of(l, result->offsets);
      return Answer::found;
    }
    if (!search.stopped()) return Answer::impossible;
    if (cpu_seconds() > deadline) return Answer::unknown;
  }
  return Answer::unknown;
}

}  // namespace

OffsetResult assign_offsets(const BufferInstance& instance, const OffsetOptions& options) {
  OffsetResult result;
  const Layout l = make_layout(instance);
  result.lower_bound = l.live_peak;
  result.bound = "live bytes";
  const double deadline =
      options.budget_seconds > 0 ? cpu_seconds() + options.budget_seconds : infinity;
  result.peak = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> left(l.sections, 0);
  for (int section = 0; section < l.sections; ++section)
    for (int b : l.alive[section]) left[section] += l.size[b];
  std::vector<int> order(l.buffers);
  std::iota(order.begin(), order.end(), 0);
  for (const Preference& preference : preferences) {
    sort_by(l, {preference, std::vector<double>(l.buffers, 1.0)}, left, &order);
    std::vector<std::int64_t> offsets = first_fit(l, order);
    if (peak_of(l, offsets) >= result.peak) continue;
    result.peak = peak_of(l, offsets);
    result.offsets = std::move(offsets);
  }
  // `open` is the smallest capacity not known to be impossible, `low` the one tried next.
  // The search nests as deep as there are buffers.
  constexpr int most_searched = 2'000;
  const bool searched = l.buffers <= most_searched;
  std::int64_t open = l.live_peak, low = l.live_peak;
  // A pass closes in from below with half of the steps it has left for each capacity; the next one
  // begins again at the lowest with twice as many.
  std::int64_t pass_length = std::min(options.most_steps, pass_steps), pass_end = pass_length;
  while (searched && open < result.peak && result.steps < options.most_steps &&
         cpu_seconds() < deadline) {
    const std::int64_t share = (pass_end - result.steps + 1) / 2;
    const Answer answer = try_capacity(l, low, share, deadline, &result);
    if (answer == Answer::impossible) open = low + 1;
    const bool ends =
        (answer == Answer::unknown && low >= result.peak - 1) || result.steps >= pass_end;
    if (ends && open < result.peak) {
      pass_length = std::min(2 * pass_length, options.most_steps - result.steps);
      pass_end = result.steps + pass_length;
      low = open;
      continue;
    }
    low = answer == Answer::found ? std::max(open, std::min(low, result.peak - 1))
                                  : low + std::max<std::int64_t>(1, (result.peak - low) / 2);
    low = std::max(open, std::min(low, result.peak - 1));
  }
  if (open > result.lower_bound) {
    result.lower_bound = open;
    result.bound = "exhausted";
  }
  result.proven = result.lower_bound == result.peak;
  if (result.peak > 0)
    result.gap =
        static_cast<double>(result.peak - result.lower_bound) / static_cast<double>(result.peak);
  return result;
}

std::int64_t check_offsets(const BufferInstance& instance,
                           const std::vector<std::int64_t>& offsets) {
  std::int64_t peak = 0;
  for (std::size_t a = 0; a < instance.buffers.size(); ++a) {
    const BufferInstance::Buffer& x = instance.buffers[a];
    if (offsets[a] < 0) return -1;
    peak = std::max(peak, offsets[a] + x.size);
    for (std::size_t b = a + 1; b < instance.buffers.size(); ++b) {
      const BufferInstance::Buffer& y = instance.buffers[b];
      const bool together = x.lower < y.upper && y.lower < x.upper;
      if (together && offsets[a] < offsets[b] + y.size && offsets[b] < offsets[a] + x.size)
        return -1;
    }
  }
  return peak;
}

}  // namespace shardfit::partition
