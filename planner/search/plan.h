#pragma once
// A plan: every option of a PlanSpec lowered, run and judged under each way to share the job, and
// which one to take.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/time_clock.h"
#include "search/imbalance.h"
#include "search/rent.h"
#include "search/training_job.h"
#include "search/verdict.h"

namespace shardfit::search {

struct SearchControls;
struct SearchResult;

/// What made a number as high as it is: the storage allocated last before the peak.
struct Cause {
  std::string kind;   // operator: "mm", "optimizer_state"
  std::string layer;  // module path; "" outside the model
  Category category = Category::temporary;
};

/// A phase of the program: its peak, or what is alive between steps and after loading.
struct Phase {
  std::string name;  // "loaded", "first_step.forward", "steady_step.backward", "between_steps"
  std::int64_t allocated = 0, reserved = 0;
  Cause cause;
  std::int64_t instruction = -1;  // where the peak was reached; -1: at the phase's end
  int step = 0;
  bool live = false;
};

/// One GPU of an option.
struct Gpu {
  int index = 0, rank = 0;
  std::string role;
  std::shared_ptr<const Program> program;  // equal ranks share it
  Card card;
  Judgement judgement;
  std::vector<Phase> phases;
  std::size_t worst = 0;  // the phase with the highest allocated bytes
  run::Census peak;       // alive at that moment
  std::int64_t device_bytes() const { return judgement.unlimited.reserved_peak + card.outside(); }
};

/// A change of the job, and what comes of it.
struct Change {
  std::string words;  // "recompute full"
  Verdict verdict = Verdict::does_not_fit;
  std::int64_t needed = 0;             // least bytes to reserve, of the GPU that needs most
  std::int64_t headroom = 0;           // negative: still short by so much
  std::optional<double> step_seconds;  // where it runs and the device's speed is known
};

struct AssumptionEffect {
  spec::Assumption assumption;
  /// Live bytes at the peak under the other choices, each rounded as the allocator rounds it, less
  /// those of the plan: the range, 0 included.
  std::int64_t low = 0, high = 0;
};

/// Another way to share the job on the same GPUs, in short.
struct Alternative {
  spec::Parallel parallel = spec::Parallel::none;
  spec::Split split;
  bool applies = true;  // false: `because` says why it cannot be
  Verdict verdict = Verdict::fits;
  std::int64_t needed = 0, headroom = 0;  // of the GPU that needs most; 0 where not asked for
  std::optional<Timing> timing;
  double samples_per_second = 0;  // of all cards; 0 where there is no timing
  std::int64_t global_batch = 0;  // of a step, as Option::job's; 0 where it does not apply
  std::string because;            // why it was not taken
};

/// A job on the GPUs of an option, shared in one way.
struct Option {
  const spec::OptionSpec* spec = nullptr;
  std::shared_ptr<const spec::OptionSpec>
      own_spec;  // of a search, with what it found; behind `spec`
  spec::Parallel parallel = spec::Parallel::none;
  spec::Split split;
  std::int64_t parameters = 0;  // of the whole model, of which a rank may hold a part
  std::string shares;           // what the cards share, in a sentence; "" for one card
  RankJob job;                  // of the rank that needs most
  program::TrainingJob whole;   // the job before the way of sharing was put into it
  std::shared_ptr<const program::Lowering> lowering;
  Accuracy accuracy;
  Verdict verdict = Verdict::fits;
  std::string reason;
  std::vector<Gpu> gpus;
  std::size_t tightest = 0;  // index of the GPU with the least headroom
  std::vector<AssumptionEffect> assumptions;
  std::vector<Change> changes;  // where it does not fit: the cheapest that would
  std::vector<Imbalance> imbalances;
  std::vector<std::string> warnings;
  std::optional<Timing> timing;  // empty where the device's speed is not known
  std::optional<Rent> rent;      // where there is a price file
  std::vector<Alternative> others;
  std::int64_t largest_micro_batch = 0;        // that fits, where a larger batch is asked about
  std::shared_ptr<const SearchResult> search;  // where configurations were searched

  /// The program is another framework's than the one asked for, which has no such strategy.
  bool foreign() const;
  /// A search was stopped before it knew of a configuration that fits, and not all were ruled out:
  /// what is said of bytes is said of the one that likely needs least.
  bool undecided() const;
  const Program& program() const { return *gpus.front().program; }
  const Gpu& worst_gpu() const { return gpus[tightest]; }
  /// Optimizer steps that run at the same time: one, or one a card.
  std::int64_t runs() const {
    return parallel == spec::Parallel::independent ? spec->cluster.count : 1;
  }
  /// Samples that all cards together complete in the time of one step.
  std::int64_t samples_per_step() const { return job.batch.global * runs(); }
  /// 0 where there is no timing.
  double samples_per_second() const {
    return timing ? static_cast<double>(samples_per_step()) / timing->step_seconds : 0;
  }
};

/// "fits", "tight", "does not fit"; "not decided" where a search was stopped too early to say.
const char* verdict_text(const Option& option);

struct Plan {
  std::shared_ptr<const spec::PlanSpec>
      spec;                     // what was asked, with equal batches; options point in
  std::vector<Option> options;  // in the order of the PlanSpec
  std::optional<std::size_t> recommended;
  std::string because;
  std::string answer;  // to the hypothesis; "" where there is none
  /// What is not the same on all sides and so takes a comparison its ground, as "sequence 2048 and
  /// 4096"; empty where options can be compared.
  std::vector<std::string> differences;
  /// Options that were not come to, by name, and what stopped it.
  std::vector<std::string> unfinished;
  StopCheck::Why stopped = StopCheck::Why::no;
  std::int64_t parameters = 0;  // of the first option's model
};

struct PlanSettings {
  bool effects = true;        // re-simulate what was assumed
  bool equal_batches = true;  // a global batch that nobody gave is the same on all sides
  bool changes = true;        // re-simulate changes where an option does not fit
  bool all_needs = true;      // the bytes that ways need which fit but are not taken
  bool computes = false;      // programs hold what is computed, too, not only memory
  /// How a search is stopped and watched. Where nothing is searched its budget is that of all
  /// options; what was not come to is Plan::unfinished.
  const SearchControls* search = nullptr;
};

/// Throws InputError for jobs, models and strategies that cannot be expressed, all faults at once.
Plan make_plan(const spec::PlanSpec& spec, const PlanSettings& settings);

// For the files of this room.

/// The job on the GPUs of `spec`, every rank lowered, judged and, where the device's speed is
/// known, timed. `job` is any rank's. What measure() finds is left out.
Option try_option(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                  const program::Lowering& lowering);
/// The same where it fits; nothing where it does not, which mostly one rank's program tells.
std::optional<Option> try_to_fit(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                                 const program::Lowering& lowering);
/// What takes most of the time: the bytes each GPU needs, what is alive at its peak, and from these
/// the tightest GPU and the imbalances. Nothing where that is known.
void measure(Option& option);
/// Both.
Option make_option(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                   const program::Lowering& lowering);

/// One card of an option as a program finds it under a way to share the job; `index` is that of the
/// GPU.
Card card_for(const spec::OptionSpec& spec, spec::Parallel parallel, int index);

/// Independent runs are taken for a shared job where they complete so many times the samples: what
/// an exchange as long as the step leaves of it when the backward pass, two thirds of a step, hides
/// its part.
inline constexpr double worth_splitting = 4.0 / 3;

/// A steady step of all ranks; nothing, and what number `missing`, where the device's speed or link
/// is not known. The programs must record their operators.
std::optional<Timing> time_of(const Option& option, std::string& missing);

/// What the time clock plays for an option: its ranks' programs, equal ranks once, on its devices.
std::vector<run::RankProgram> rank_programs(const Option& option);
run::Machine machine_for(const Option& option);

/// Answers the hypothesis, finds what differs between options, and recommends.
void compare(Plan& plan);

/// The changes that would make a job fit, cheapest first, each lowered and judged anew; when no
/// single one does, all of them together.
std::vector<Change> find_changes(const Option& option, const program::Lowering& lowering);

/// The largest micro-batch that fits, accumulation aside; 0 where not even one sample does. Found
/// by doubling and halving between, so a larger one might still fit where another kernel is
/// dispatched.
std::int64_t find_largest_micro_batch(const Option& option, const program::Lowering& lowering);

/// What the other choices for assumed words would do to the peak.
std::vector<AssumptionEffect> find_effects(const Option& option, const program::Lowering& lowering);

}  // namespace shardfit::search
