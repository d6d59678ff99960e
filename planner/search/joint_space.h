#pragma once
// The configurations of one option, and what is known of each: bounds of its bytes and its time,
// then what a run of its program says.

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "run/operator_time.h"
#include "search/joint.h"
#include "search/long_steps.h"
#include "search/stage_cut.h"

namespace shardfit::search {

/// Passes of a step that are lowered to compare configurations; later ones are like the last.
inline constexpr std::int64_t short_passes = 3;

/// A kind of recompute that is tried.
struct Policy {
  spec::Recompute words;
  program::Recompute kind = program::Recompute::none;
  bool some_blocks = false;  // some of the blocks: the cheapest that fit are found when it is run
};

/// One configuration.
struct Point {
  Configuration configuration;
  std::size_t way = 0, policy = 0;
  std::int64_t blocks = 0;   // of some_blocks, once run: its level, from 1
  std::int64_t least = 0;    // its GPU needs at least so many bytes
  double least_seconds = 0;  // and its step takes at least so long
  std::optional<Found> found;
  bool time_bounded = false;
  bool measured = false;  // `found` has the bytes it needs
  std::optional<Timing> timing;
  std::shared_ptr<const Option> option;  // with all passes and ranks: `found` has its numbers
  bool too_large = false;                // `least` is more than the budget
  bool bytes_bounded = false;            // `least` is more than a count of what is kept
  std::optional<CutAim> cut;             // layers moved between the stages of `uncut`
  std::size_t uncut = 0;                 // its index
  bool cut_known = false;
  double cut_bytes = 0;  // of its fullest stage, by the loads of `uncut`
};

class JointSpace {
 public:
  /// `passes_for_bytes`: of a step, at most, that are lowered to find the bytes it needs.
  JointSpace(const spec::OptionSpec& spec, std::vector<Way> ways, std::int64_t passes_for_bytes);

  std::vector<Point>& points() { return points_; }
  /// What is not among the points, in words.
  std::vector<std::string> not_tried() const;
  std::size_t ways() const { return ways_.size(); }
  const Way& way(const Point& point) const { return ways_[point.way]; }
  bool shares(const Point& point) const {
    return way(point).parallel != spec::Parallel::independent;
  }
  /// The one that likely needs least: of the way that splits most, the smallest micro-batch and the
  /// most recompute.
  Point& frugal();
  /// The same of one way.
  Point& frugal(std::size_t way);
  /// The way is a program of another framework than the job's.
  bool foreign(const Point& point) const;
  std::int64_t samples_per_step(const Point& point) const;
  std::int64_t budget(const Point& point) const;
  /// Whether the device's speed is known; else `missing` says what is not.
  bool timed() const { return missing_.empty(); }
  const std::string& missing() const { return missing_; }

  /// Raises `least` by lowering single passes of the two smallest micro-batches: live bytes are the
  /// highest of many sums that each grow evenly with the micro-batch, so they grow ever faster.
  void bound_bytes(Point& point);
  /// Raises `least_seconds` from the configuration that recomputes nothing, which must have been
  /// run: this one does all of that and its recomputation, whose operators are lowered and summed.
  void bound_time(Point& point);
  /// Of layers moved between stages, which and a bound of its time, from the run of the layers as
  /// they were: all stages together compute as much. False where this was known.
  bool bound_cut(Point& point);
  /// Lowers the job (three passes at most), judges and times it; where `needed` asks for it, with
  /// the bytes it needs.
  void run(Point& point, bool needed);
  /// Whether the bytes a point needs are those of all its passes; else they are so but for a few
  /// pages.
  bool exact_bytes(const Point& point) const {
    return point.option || !alike(point) || point.configuration.accumulation <= passes_for_bytes_;
  }
  /// How many bytes more its GPU must have for it to fit, interval and retries included; less than
  /// 0 where it has more than that.
  std::int64_t lacks(const Point& point) const;
  /// The configuration that differs in recomputing nothing; null where it is the same or not there.
  Point* without_recompute(const Point& point);
  /// A little less of some blocks to recompute; false where there is no less.
  bool lessen(Point& point);
  /// Makes the option with all its passes and ranks; `found` has its numbers from then on. In
  /// short: with a few passes, those after them like the last, which the option's warnings say.
  void finish(Point& point, bool in_short = false) const;
  /// What is asked whether to go on by all that is run from now on: it throws Stopped.
  void set_stop(const StopCheck* stop) { stop_ = stop; }

 private:
  struct Probe {
    std::int64_t requested = 0;  // highest sum of live bytes
    double flops = 0;            // of a sample's products
    double seconds = 0;          // of all operators of a step with one pass
  };
  const Probe& probe(std::size_t way, std::size_t policy, std::int64_t micro);
  RankJob job_of(const Point& point, std::int64_t blocks) const;
  void run_blocks(Point& point, bool needed);
  void add_cuts(std::size_t uncut);
  std::optional<StageCut> cut_below(const Point& point, double bytes) const;
  void set_cut(Point& point, const std::optional<StageCut>& cut) const;
  void run_cut(Point& point, bool needed);
  /// Sets of blocks that are run again, in the order of what they recompute: the exact choices
  /// where blocks differ (the first `chosen` of them), then the first N for every N.
  struct Levels {
    std::vector<std::vector<std::int64_t>> sets;
    std::int64_t chosen = 0;
  };
  const Levels& levels(std::size_t way, std::int64_t micro);
  void run_levels(Point& point, std::int64_t from, std::int64_t to, bool needed);
  void set_level(Point& point, std::int64_t level);
  Program one_pass(std::size_t way, std::size_t policy, std::int64_t micro);
  void run_as(Point& point, std::int64_t blocks, bool needed, bool timed);
  Option lower(const Point& point, RankJob job, std::int64_t passes, std::optional<Find> find,
               bool timed) const;
  void add_points();
  std::int64_t units_of(std::size_t way) const;
  std::int64_t parameters_of_model() const;
  std::int64_t data_ranks(const Point& point) const;
  bool alike(const Point& point) const;
  std::int64_t few_passes(const Point& point) const;
  /// Of ranks that are not alike: those of a whole step, or of one that is like it.
  PassesRun passes_of(const Point& point) const;
  void bound_times();
  double least_flops(std::size_t policy) const;
  double least_more_seconds(const Point& point);

  const spec::OptionSpec& spec_;
  std::vector<Way> ways_;
  std::int64_t passes_for_bytes_;
  const StopCheck* stop_ = nullptr;
  std::vector<Policy> policies_;
  std::vector<Point> points_;
  std::map<std::tuple<std::size_t, std::size_t, std::int64_t>, Probe> probes_;
  std::vector<std::string> units_;  // blocks that can be recomputed
  std::map<std::pair<std::size_t, std::int64_t>, Levels> levels_;
  std::map<std::size_t, StageLoads> loads_;  // by the point that was not cut
  std::string missing_;
  double peak_rate_ = 0;  // flops a second of products, the highest of the dtypes
  double contention_ = 0;
  std::optional<run::OperatorTimes> times_;
  std::vector<double> flops_;  // of a sample, by policy
  Accuracy accuracy_;
  std::vector<Card> cards_;  // by way
};

}  // namespace shardfit::search
