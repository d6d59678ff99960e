#include "partition/variant_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace shardfit::partition {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A variant that no other beats in both time and bytes; `index` into the layer's own list.
struct Kept {
  double time, bytes;
  int index;
};

/// Fastest first; each further one is slower and smaller.
std::vector<Kept> undominated(const std::vector<VariantCost>& variants) {
  std::vector<Kept> all;
  for (int i = 0; i < static_cast<int>(variants.size()); ++i)
    all.push_back({variants[i].time, variants[i].bytes, i});
  std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) {
    if (a.time != b.time) return a.time < b.time;
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.index < b.index;
  });
  std::vector<Kept> kept;
  for (const Kept& k : all)
    if (kept.empty() || k.bytes < kept.back().bytes) kept.push_back(k);
  return kept;
}

/// One step along the lower hull of a layer: `slower` more time frees `freed` bytes.
struct Segment {
  double slower, freed;
  int group, count;
};

class Knapsack {
 public:
  Knapsack(const std::vector<std::vector<VariantCost>>& layers, double cap, double good_enough,
           double limit, std::int64_t most_steps)
      : cap_(cap), good_enough_(good_enough), best_(limit), steps_left_(most_steps) {
    pick_.assign(layers.size(), 0);
    std::map<std::vector<double>, int> groups;
    for (int v = 0; v < static_cast<int>(layers.size()); ++v) {
      std::vector<Kept> kept = undominated(layers[v]);
      if (kept.empty()) {
        possible_ = false;
        return;
      }
      pick_[v] = kept.front().index;
      base_time_ += kept.front().time;
      base_bytes_ += kept.front().bytes;
      if (kept.size() == 1) continue;
      std::vector<double> key;
      for (const Kept& k : kept) {
        key.push_back(k.time - kept.front().time);
        key.push_back(kept.front().bytes - k.bytes);
      }
      if (kept.size() > 2) key.push_back(v);  // only pairs are grouped
      auto [at, fresh] = groups.emplace(key, static_cast<int>(groups_.size()));
      if (fresh) groups_.push_back({kept, {}});
      groups_[at->second].layers.push_back({v, kept});
    }
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
      double x = a.kept.front().bytes - a.kept.back().bytes;
      double y = b.kept.front().bytes - b.kept.back().bytes;
      return x != y ? x > y : a.layers.front().layer < b.layers.front().layer;
    });
    make_segments();
  }

  VariantChoice run() {
    VariantChoice out;
    if (!possible_) return out;
    double lacking = base_bytes_ - cap_;
    chosen_.assign(groups_.size(), 0);
    if (lacking <= 0) {
      out.feasible = true;
      out.time = out.bound = base_time_;
      out.pick = pick_;
      return out;
    }
    out.bound = base_time_ + relaxed(0, lacking);
    search(0, base_time_, lacking);
    out.exact = steps_left_ > 0;
    if (!found_) {
      if (out.exact) out.bound = std::max(out.bound, best_);
      return out;
    }
    out.feasible = true;
    out.time = best_;
    if (out.exact && !stopped_) out.bound = best_;
    out.pick = pick_;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      const int layers = static_cast<int>(group.layers.size());
      for (int i = 0; i < layers; ++i) {
        const Member& m = group.layers[i];
        const int at = group.kept.size() == 2 ? (i < best_chosen_[g] ? 1 : 0) : best_chosen_[g];
        out.pick[m.layer] = m.kept[at].index;
      }
    }
    return out;
  }

 private:
  struct Member {
    int layer;
    std::vector<Kept> kept;
  };
  struct Group {
    std::vector<Kept> kept;
    std::vector<Member> layers;
  };

  void make_segments() {
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      const std::vector<Kept>& k = groups_[g].kept;
      for (std::size_t at = 0; at + 1 < k.size();) {
        std::size_t next = at + 1;
        auto slope = [&](std::size_t to) {
          return (k[to].time - k[at].time) / (k[at].bytes - k[to].bytes);
        };
        for (std::size_t to = at + 2; to < k.size(); ++to)
          if (slope(to) <= slope(next)) next = to;
        segments_.push_back({k[next].time - k[at].time, k[at].bytes - k[next].bytes, g,
                             static_cast<int>(groups_[g].layers.size())});
        at = next;
      }
    }
    std::stable_sort(segments_.begin(), segments_.end(), [](const Segment& a, const Segment& b) {
      return a.slower * b.freed < b.slower * a.freed;
    });
  }

  /// Least extra time, fractions allowed, that frees `lacking` bytes in the groups from `from` on.
  double relaxed(int from, double lacking) const {
    double time = 0;
    for (const Segment& s : segments_) {
      if (lacking <= 0) return time;
      if (s.group < from) continue;
      const double all = s.freed * s.count;
      if (all >= lacking) return time + s.slower * (lacking / s.freed);
      time += s.slower * s.count;
      lacking -= all;
    }
    return lacking <= 0 ? time : infinity;
  }

  void search(int g, double time, double lacking) {
    if (stopped_ || --steps_left_ <= 0) return;
    if (lacking <= 0) {
      if (time >= best_) return;
      best_ = time;
      found_ = true;
      best_chosen_ = chosen_;
      stopped_ = time <= good_enough_;
      return;
    }
    if (g == static_cast<int>(groups_.size())) return;
    const Group& group = groups_[g];
    const Kept& fastest = group.kept.front();
    const bool pair = group.kept.size() == 2;
    const int options =
        pair ? static_cast<int>(group.layers.size()) + 1 : static_cast<int>(group.kept.size());
    struct Way {
      double bound, time, lacking;
      int chosen;
    };
    std::vector<Way> ways;
    for (int c = 0; c < options; ++c) {
      const Kept& k = group.kept[pair ? 1 : c];
      const int times = pair ? c : 1;
      Way w{0, time + times * (k.time - fastest.time), lacking - times * (fastest.bytes - k.bytes),
            c};
      w.bound = w.time + relaxed(g + 1, w.lacking);
      if (w.bound < best_) ways.push_back(w);
    }
    std::stable_sort(ways.begin(), ways.end(),
                     [](const Way& a, const Way& b) { return a.bound < b.bound; });
    for (const Way& w : ways) {
      if (w.bound >= best_) break;
      chosen_[g] = w.chosen;
      search(g + 1, w.time, w.lacking);
    }
    chosen_[g] = 0;
  }

  double cap_, good_enough_, best_;
  std::int64_t steps_left_;
  bool possible_ = true, found_ = false, stopped_ = false;
  double base_time_ = 0, base_bytes_ = 0;
  std::vector<int> pick_, chosen_, best_chosen_;
  std::vector<Group> groups_;
  std::vector<Segment> segments_;
};

}  // namespace

namespace {

/// Settles what needs no search: every layer at its fastest fits, or is too slow already, or even
/// the smallest of each do not fit.
bool settled(const std::vector<std::vector<VariantCost>>& layers, double cap, double limit,
             VariantChoice* out) {
  double bytes = 0, least_bytes = 0;
  out->pick.assign(layers.size(), 0);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::vector<VariantCost>& offered = layers[i];
    if (offered.empty()) return true;
    double smallest = offered[0].bytes;
    int best = 0;
    for (int v = 1; v < static_cast<int>(offered.size()); ++v) {
      smallest = std::min(smallest, offered[v].bytes);
      const VariantCost &a = offered[v], &b = offered[best];
      if (a.time < b.time || (a.time == b.time && a.bytes < b.bytes)) best = v;
    }
    out->pick[i] = best;
    out->time += offered[best].time;
    bytes += offered[best].bytes;
    least_bytes += smallest;
  }
  out->bound = out->time;
  if (least_bytes > cap || out->time >= limit) return true;
  out->feasible = bytes <= cap;
  return out->feasible;
}

}  // namespace

VariantChoice choose_variants(const std::vector<std::vector<VariantCost>>& layers, double cap,
                              double good_enough, double limit, std::int64_t most_steps) {
  VariantChoice out;
  if (settled(layers, cap, limit, &out)) return out;
  return Knapsack(layers, cap, good_enough, limit, most_steps).run();
}

}  // namespace shardfit::partition
