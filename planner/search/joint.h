#pragma once
// The search over ways to share a job, micro-batches and recompute of one option together: the
// shortest step, the most samples a second or the smallest memory that fits. Bounds rule
// configurations out, a run of the program decides the others.

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "search/plan.h"
#include "search/ways.h"

namespace shardfit::search {

/// One way to run the job of an option.
struct Configuration {
  spec::Parallel parallel = spec::Parallel::none;
  spec::Split split;
  std::int64_t micro_batch = 1, accumulation = 1;
  spec::Recompute recompute;
  std::vector<std::int64_t> stage_layers;  // of a pipeline; empty: as the job says
  /// "full", "selective:first-3-blocks".
  std::string recompute_words() const;
  /// "fsdp2, micro-batch 2, accumulation 4, recompute full"; without the way to share for one GPU.
  std::string words() const;
};

/// A configuration that was run, with its numbers. Of a step with many equal passes, those after
/// the third are taken to be as long as the third.
struct Found {
  Configuration configuration;
  Verdict verdict = Verdict::does_not_fit;
  std::int64_t needed = 0;    // least bytes to reserve on the GPU that needs most
  std::int64_t headroom = 0;  // negative: so many bytes short
  std::optional<double> step_seconds;
  double samples_per_second = 0;  // of all cards; 0 where the speed is not known
};

/// The best configuration that fits for one objective. Value and bound: seconds of a step, seconds
/// a sample, bytes needed. Nothing below `bound` fits; equal to the value: proven.
struct Best {
  spec::Objective objective = spec::Objective::step;
  std::optional<Found> found;  // empty: nothing fits
  double value = 0, bound = 0;
  bool proven = false;
  /// 1: nothing that fits is known yet.
  double gap() const { return proven ? 0 : value <= 0 ? 1 : (value - bound) / value; }
};

/// What more memory would bring: of the configurations that would be better but do not fit, the one
/// that lacks least.
struct ShadowPrice {
  Found next;
  double saved_seconds = 0;            // of a step of as many samples as the chosen one's
  double more_samples_per_second = 0;  // of all cards
  std::int64_t short_bytes = 0;        // with so many more it fits, its interval included
  double seconds_per_gib() const;
  double samples_per_second_per_gib() const;
};

struct SearchResult {
  spec::Objective objective = spec::Objective::step;
  std::int64_t configurations = 0;  // in all
  std::int64_t run = 0;             // lowered and run
  std::int64_t too_large = 0;       // ruled out by a lower bound of their bytes
  std::int64_t not_better = 0;      // ruled out by a lower bound of their time
  std::int64_t left = 0;            // neither: the search was stopped
  std::string stopped;              // "", "budget", "interrupt"
  std::vector<Best> best;           // the objective asked for, then the others
  std::optional<ShadowPrice> shadow;
  /// Configurations that somebody may expect here and that are none of these, in words.
  std::vector<std::string> not_tried;
  bool all_dearer = true;  // every configuration was looked at that more memory could bring
  /// Nothing that fits is known, and it is not known that nothing does.
  bool undecided() const;
  /// "within the budget", "before the interrupt"; "" where it was not stopped.
  const char* stop_words() const;
};

/// Where a search was stopped: "within the budget" or, by an interrupt, "before the interrupt".
const char* stop_words(bool by_budget);

/// Says of an option whose search is undecided what was settled when its search was stopped, and
/// why the configuration that likely needs least is none that fits.
void say_undecided(Option& option);

struct SearchProgress {
  std::string option;
  std::int64_t configurations = 0, run = 0, left = 0;
  double cpu_seconds = 0;  // of the whole search so far
  double gap = 1;          // 1: nothing that fits is known yet
};

/// How a search is stopped and watched.
struct SearchControls {
  std::optional<double> budget_seconds;              // of CPU time, for all options
  const volatile std::sig_atomic_t* stop = nullptr;  // not 0: stop with the best so far
  std::function<void(const SearchProgress&)> progress;
};

/// Whether an option leaves anything to a search, or an objective asks for one.
bool is_searched(const spec::OptionSpec& option, const spec::PlanSpec& plan);

/// What a search needs to know that holds for all options of a plan.
class JointSearch {
 public:
  /// `options` of the plan are searched, each within an equal part of what is left of the budget.
  JointSearch(const spec::PlanSpec& plan, const SearchControls& controls, std::size_t options);
  JointSearch(const JointSearch&) = delete;
  JointSearch& operator=(const JointSearch&) = delete;

  /// The next option's part begins: all that is run for it shares this.
  void begin_option();
  const StopCheck& stop() const { return stop_; }
  /// The best of an option for the plan's objective; where nothing fits, what lacks least. Ways of
  /// another framework's program are taken only where none of the own fits.
  Option run(const spec::OptionSpec& spec, std::vector<Way> ways);

 private:
  const spec::PlanSpec& plan_;
  const SearchControls& controls_;
  std::size_t options_left_;
  double started_;
  StopCheck stop_;
};

}  // namespace shardfit::search
