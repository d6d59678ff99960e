#include "search/joint.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "base/format.h"
#include "search/joint_space.h"
#include "search/sharing.h"
#include "search/stage_cut.h"

namespace shardfit::search {
namespace {

using spec::Objective;
using spec::Parallel;

constexpr double infinite = std::numeric_limits<double>::infinity();
/// Configurations that do not fit and are run for the shadow price, at most.
constexpr int most_for_shadow = 12;
/// Passes of a step that are lowered where the smallest memory is asked for.
constexpr std::int64_t most_exact_passes = 16;
/// Configurations that are run with all passes for one objective, at most.
constexpr int most_finished = 8;

/// The search of one option.
class Search {
 public:
  Search(JointSpace& space, const SearchControls& controls, const StopCheck& stop, std::string name,
         double begun)
      : space_(space), controls_(controls), stop_(stop), name_(std::move(name)), begun_(begun) {
    for (const Point& point : space_.points()) shared_ = shared_ || space_.shares(point);
  }

  SearchResult& result() { return result_; }
  bool stopped() const { return !result_.stopped.empty(); }

  /// The best point that fits, with what is proven of it; null where none does.
  Point* best(Objective objective, Best& out, std::optional<std::size_t> only_way = {});
  /// The best points of all objectives, the one asked for first; the point to take for it, null
  /// where nothing fits. `may_split`: nobody asked for the shortest step, so runs of their own are
  /// taken where they complete much more.
  Point* find_all(Objective objective, bool may_split);
  /// As best(), with all passes and ranks: those of fewer may say a little less.
  Point* best_exactly(Objective objective, Best& out);
  /// Where nothing fits, what lacks least of the smallest passes with most recompute of each way.
  Point* least();
  /// What was run because a search that was stopped needs an answer is its best so far.
  void take_answer(const Point& chosen) {
    for (Best& best : result_.best) {
      const bool same = best.found && best.found->needed == 0 &&
                        best.found->configuration.words() == chosen.found->configuration.words();
      if (same) best.found = chosen.found;
      if (best.found || chosen.found->verdict != Verdict::fits) continue;
      best.found = chosen.found;
      best.value = value_of(chosen, best.objective);
      best.bound = std::min(best.bound, best.value);
    }
  }
  void find_shadow(const Point& chosen, Objective objective);
  /// What a way does at best for the objective; of another framework's program, with the chosen
  /// one's recompute and the nearest micro-batch.
  Point* of_way(std::size_t way, Objective objective, const Point& chosen);
  void count();
  void measure(Point& point) { space_.run(point, true); }

 private:
  bool counts(const Point& point, Objective objective) const {
    if (!foreign_ && space_.foreign(point)) return false;
    if (point.cut == CutAim::smallest && objective != Objective::memory) return false;
    // Independent runs hold no less than one card's job; their step is that of one card alone.
    return objective != Objective::memory || !shared_ || space_.shares(point);
  }
  double bound_of(const Point& point, Objective objective) const {
    if (objective == Objective::memory) return static_cast<double>(point.least);
    const double seconds = point.found ? step_of(point) : point.least_seconds;
    if (objective == Objective::step) return seconds;
    return seconds / static_cast<double>(space_.samples_per_step(point));
  }
  static double step_of(const Point& point) { return point.found->step_seconds.value_or(infinite); }
  double value_of(const Point& point, Objective objective) const {
    if (objective != Objective::memory) return bound_of(point, objective);
    return static_cast<double>(point.found->needed);
  }
  static bool wanted(const Point& point) { return point.found->verdict == Verdict::fits; }
  bool must_stop() {
    if (stopped()) return true;
    const StopCheck::Why why = stop_.why();
    if (why == StopCheck::Why::interrupt) result_.stopped = "interrupt";
    if (why == StopCheck::Why::budget) result_.stopped = "budget";
    return stopped();
  }
  /// False where it is time to stop, before the work or within it.
  template <class Work>
  bool goes_on(Work work) {
    if (must_stop()) return false;
    try {
      work();
      return true;
    } catch (const Stopped&) {
      must_stop();
      return false;
    }
  }
  /// One step towards knowing a point: a tighter bound, or its run.
  void look_at(Point& point, Objective objective, double bound, double value);
  void report(double value, double bound);

  JointSpace& space_;
  const SearchControls& controls_;
  const StopCheck& stop_;
  std::string name_;
  double begun_;
  bool shared_ = false;   // some way shares the job
  bool foreign_ = false;  // ways of another framework's program take part
  SearchResult result_;
};

void Search::report(double value, double bound) {
  if (!controls_.progress) return;
  count();
  SearchProgress progress{name_, result_.configurations, result_.run, 0, cpu_seconds() - begun_, 1};
  progress.left = result_.configurations - result_.run - result_.too_large;
  if (value < infinite && value > 0) progress.gap = std::max(0.0, value - bound) / value;
  controls_.progress(progress);
}

void Search::look_at(Point& point, Objective objective, double bound, double value) {
  if (!point.bytes_bounded && !point.too_large) space_.bound_bytes(point);
  if (point.too_large || bound_of(point, objective) > bound) return;
  Point* without = objective == Objective::memory ? nullptr : space_.without_recompute(point);
  if (without && !point.time_bounded) {
    if (!without->timing) space_.run(*without, false);
    space_.bound_time(point);
    return;
  }
  if (space_.bound_cut(point) && bound_of(point, objective) > bound) return;
  space_.run(point, objective == Objective::memory);
  report(value, bound);
}

Point* Search::best(Objective objective, Best& out, std::optional<std::size_t> only_way) {
  out.objective = objective;
  using Key = std::pair<double, std::size_t>;  // lowest bound first, then the simplest
  std::priority_queue<Key, std::vector<Key>, std::greater<>> open;
  std::vector<Point>& points = space_.points();
  const auto takes_part = [&](const Point& point) {
    return only_way ? point.way == *only_way : counts(point, objective);
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (takes_part(points[i])) open.push({bound_of(points[i], objective), i});
  }
  Point* best = nullptr;
  double value = infinite;
  const auto take = [&](Point& point) {
    if (!wanted(point) || value_of(point, objective) >= value) return;
    best = &point;
    value = value_of(point, objective);
  };
  out.proven = true;
  while (!open.empty() && open.top().first < value) {
    const auto [bound, i] = open.top();
    Point& point = points[i];
    out.bound = bound;
    const bool known = point.found && (objective != Objective::memory || point.measured);
    if (known) {
      open.pop();
      take(point);
      continue;
    }
    if (point.too_large) {
      open.pop();
      continue;
    }
    const double lowest = bound;
    if (!goes_on([&] { look_at(point, objective, lowest, value); })) {
      out.proven = false;
      break;
    }
    open.pop();
    if (point.too_large) continue;
    open.push({bound_of(point, objective), i});
    if (objective == Objective::memory && point.found && point.measured) take(point);
  }
  if (!out.proven) {  // what was run before the search was stopped counts all the same
    for (Point& point : points) {
      const bool known = point.found && (objective != Objective::memory || point.measured);
      if (known && takes_part(point)) take(point);
    }
    out.bound = std::min(out.bound, value);
  } else if (best) {
    out.bound = value;
    // Bytes of fewer passes are known but for a few pages; their lower bounds hold.
    for (const Point& point : points) {
      if (objective != Objective::memory || !takes_part(point) || !point.measured) continue;
      if (!space_.exact_bytes(point)) {
        out.bound = std::min(out.bound, static_cast<double>(point.least));
      }
    }
    out.proven = out.bound >= value;
  }
  if (best) {
    out.value = value;
    out.proven = out.proven || out.bound >= value;
  }
  return best;
}

Point* Search::least() {
  std::vector<Point*> candidates;
  for (std::size_t way = 0; way < space_.ways(); ++way) {
    Point& point = space_.frugal(way);
    if (counts(point, Objective::memory)) candidates.push_back(&point);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Point* a, const Point* b) {
    return std::pair(space_.foreign(*a), a->least) < std::pair(space_.foreign(*b), b->least);
  });
  Point* best = nullptr;
  for (Point* point : candidates) {
    if (best && space_.foreign(*point) && !space_.foreign(*best)) break;
    if (best && point->least >= best->found->needed) continue;
    if (!goes_on([&] { measure(*point); })) break;
    if (!best || point->found->needed < best->found->needed) best = point;
  }
  return best;
}

Point* Search::best_exactly(Objective objective, Best& out) {
  for (int tried = 0;; ++tried) {
    out = {};
    Point* point = best(objective, out);
    if (!point || point->option) return point;
    if (tried > 0 && (stopped() || tried > most_finished)) {
      out.proven = false;
      return point;
    }
    goes_on([&] { space_.finish(*point); });
  }
}

Point* Search::find_all(Objective objective, bool may_split) {
  result_.objective = objective;
  std::vector<Objective> order{objective};
  for (const auto other : {Objective::step, Objective::throughput, Objective::memory}) {
    const bool known = other == Objective::memory || space_.timed();
    if (other != objective && known) order.push_back(other);
  }
  std::vector<Point*> points;
  result_.best.clear();
  for (const Objective one : order) {
    Best found;
    Point* point = best_exactly(one, found);
    if (!point && one == objective && !foreign_) {  // none of the own program fits
      foreign_ = true;
      point = best_exactly(one, found);
    }
    if (point) found.found = point->found;
    points.push_back(point);
    result_.best.push_back(std::move(found));
  }
  Point* chosen = points.front();
  if (objective != Objective::step || !chosen || !may_split) return chosen;
  Point* most = points[1];  // independent runs, where the exchange costs more than it brings
  const bool apart =
      most && !space_.shares(*most) &&
      most->found->samples_per_second >= worth_splitting * chosen->found->samples_per_second;
  return apart ? most : chosen;
}

Point* Search::of_way(std::size_t way, Objective objective, const Point& chosen) {
  Point* nearest = nullptr;
  const auto distance = [&](const Point& point) {
    const std::int64_t micro = point.configuration.micro_batch;
    return std::pair(point.policy != chosen.policy,
                     std::abs(micro - chosen.configuration.micro_batch));
  };
  bool foreign = false;
  for (Point& point : space_.points()) {
    if (point.way != way) continue;
    foreign = space_.foreign(point);
    if (!nearest || distance(point) < distance(*nearest)) nearest = &point;
  }
  Point* found = nullptr;
  Best ignored;
  if (!foreign) {
    found = best(objective, ignored, way);
    if (!found) found = &space_.frugal(way);  // likely what lacks least
  } else {
    found = nearest;
  }
  if (!found || !goes_on([&] { measure(*found); })) return nullptr;
  return found;
}

/// Of the points that are better than the chosen one but do not fit, the one that lacks least: in
/// the order of their least bytes until those of the next are more than what one was found to need.
void Search::find_shadow(const Point& chosen, Objective objective) {
  if (objective == Objective::memory || !chosen.timing) return;
  const bool by_sample = objective == Objective::throughput;
  const auto samples = [&](const Point& point) {
    return static_cast<double>(space_.samples_per_step(point));
  };
  std::vector<Point> extra;
  std::vector<Point*> dearer;
  for (Point& point : space_.points()) {
    const bool fits = point.found && point.found->verdict == Verdict::fits;
    if (&point == &chosen || fits || !counts(point, objective)) continue;
    if (bound_of(point, objective) >= bound_of(chosen, objective)) continue;
    if (!by_sample && samples(point) != samples(chosen)) continue;
    if (!goes_on([&] { space_.bound_bytes(point); })) {
      result_.all_dearer = false;
      return;
    }
    dearer.push_back(&point);
  }
  std::sort(dearer.begin(), dearer.end(),
            [](const Point* a, const Point* b) { return a->least < b->least; });
  if (chosen.blocks > 0) {  // a little less to recompute
    extra.push_back(chosen);
    if (space_.lessen(extra.back())) dearer.insert(dearer.begin(), &extra.back());
  }
  int tried = 0;
  for (Point* point : dearer) {
    const bool known = result_.shadow.has_value();
    const std::int64_t least = point->least - space_.budget(*point);
    if (known && least >= result_.shadow->short_bytes) return;
    if (tried++ >= most_for_shadow || !goes_on([&] { space_.run(*point, true); })) {
      result_.all_dearer = false;
      return;
    }
    const Found& next = *point->found;
    if (next.verdict == Verdict::fits || !next.step_seconds) continue;
    const double saved =
        *chosen.found->step_seconds - *next.step_seconds * samples(chosen) / samples(*point);
    std::int64_t lacks = 0;
    if (saved > 0 && !goes_on([&] { lacks = space_.lacks(*point); })) return;
    if (lacks <= 0 || (known && lacks >= result_.shadow->short_bytes)) continue;
    const double more = next.samples_per_second - chosen.found->samples_per_second;
    result_.shadow = ShadowPrice{next, saved, more, lacks};
  }
}

void Search::count() {
  result_.configurations = result_.run = result_.too_large = 0;
  result_.left = result_.not_better = 0;
  result_.not_tried = space_.not_tried();
  for (const Point& point : space_.points()) {
    if (!foreign_ && space_.foreign(point)) continue;
    ++result_.configurations;
    if (point.found) {
      ++result_.run;
    } else if (point.too_large) {
      ++result_.too_large;
    }
  }
  const std::int64_t rest = result_.configurations - result_.run - result_.too_large;
  (stopped() ? result_.left : result_.not_better) = rest;
}

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

/// A way that was not taken, by its best point.
Alternative alternative(const Point& point, const Option& chosen, bool foreign) {
  const Found& found = *point.found;
  Alternative out;
  out.parallel = found.configuration.parallel;
  out.split = found.configuration.split;
  out.verdict = found.verdict;
  out.needed = found.needed;
  out.headroom = found.headroom;
  out.timing = point.timing;
  out.samples_per_second = found.samples_per_second;
  out.global_batch = found.configuration.micro_batch * found.configuration.accumulation *
                     (out.parallel == Parallel::independent ? 1 : out.split.data);
  Configuration own = found.configuration;
  own.parallel = Parallel::none;
  out.because = (foreign ? "with Megatron-core's program, " : "at best with ") + own.words() + ": ";
  if (found.verdict == Verdict::does_not_fit) {
    out.because += size(-found.headroom) + " short";
  } else if (point.timing && chosen.timing) {
    const bool apart =
        out.parallel == Parallel::independent || chosen.parallel == Parallel::independent;
    if (apart) {
      out.because += format_number(out.samples_per_second / chosen.samples_per_second()) +
                     " times the samples a second, ";
    }
    out.because +=
        format_number(*found.step_seconds / chosen.timing->step_seconds) + " times the step";
  } else {
    out.because += size(found.needed) + " needed";
  }
  return out;
}

/// Independent runs where the shortest step was searched, and the way back.
void say_apart(Option& option) {
  const std::optional<Found>& shortest = option.search->best.front().found;
  if (option.parallel != Parallel::independent || !shortest || !option.timing) return;
  if (shortest->configuration.parallel == Parallel::independent) return;
  option.warnings.push_back(
      "runs of their own are taken, not the shortest step: together they complete " +
      format_number(option.samples_per_second() / shortest->samples_per_second) +
      " times its samples a second; --objective step keeps to the shortest step");
}

}  // namespace

bool is_searched(const spec::OptionSpec& option, const spec::PlanSpec& plan) {
  return option.job.any_micro_batch || plan.objective ||
         option.job.recompute.value.kind == spec::RecomputeKind::automatic;
}

JointSearch::JointSearch(const spec::PlanSpec& plan, const SearchControls& controls,
                         std::size_t options)
    : plan_(plan), controls_(controls), options_left_(options), started_(cpu_seconds()) {}

void JointSearch::begin_option() {
  double deadline = infinite;
  if (controls_.budget_seconds) {  // what is left, in equal parts
    const double now = cpu_seconds();
    const double left = std::max(0.0, started_ + *controls_.budget_seconds - now);
    deadline = now + left / static_cast<double>(std::max<std::size_t>(1, options_left_));
  }
  if (options_left_ > 0) --options_left_;
  stop_ = StopCheck(deadline, controls_.stop);
}

Option JointSearch::run(const spec::OptionSpec& spec, std::vector<Way> ways) {
  const std::size_t count = ways.size();
  Objective objective = plan_.objective ? plan_.objective->value : Objective::step;
  JointSpace space(spec, std::move(ways),
                   objective == Objective::memory ? most_exact_passes : short_passes);
  if (!space.timed()) objective = Objective::memory;
  space.set_stop(&stop_);
  Search search(space, controls_, stop_, spec.name, started_);
  Point* chosen = search.find_all(objective, !plan_.objective);
  if (!chosen && !search.stopped()) chosen = search.least();
  if (!chosen) chosen = &space.frugal();  // stopped before anything that fits was run
  if (!chosen->option) {                  // the answer is made all the same
    space.set_stop(nullptr);
    space.finish(*chosen, search.stopped());
    space.set_stop(&stop_);
  }
  std::optional<Option> option = *chosen->option;
  search.take_answer(*chosen);
  if (option->verdict == Verdict::fits) search.find_shadow(*chosen, objective);
  for (std::size_t way = 0; way < count && !search.stopped(); ++way) {
    if (way == chosen->way) continue;
    const Point* other = search.of_way(way, objective, *chosen);
    if (!other) continue;
    option->others.push_back(alternative(*other, *option, space.foreign(*other)));
  }
  search.count();
  option->search = std::make_shared<const SearchResult>(std::move(search.result()));
  if (option->search->undecided()) say_undecided(*option);
  if (objective == Objective::step && space.timed() && !option->search->best.empty()) {
    say_apart(*option);
  }
  if (!space.timed()) {
    option->warnings.push_back("no step time, so the smallest memory was searched: " +
                               space.missing());
  }
  return *std::move(option);
}

}  // namespace shardfit::search
