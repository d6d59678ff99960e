#pragma once
// A plan: every option of a PlanSpec lowered, run and judged, and which one to take.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "search/training_job.h"
#include "search/verdict.h"

namespace shardfit::search {

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
  Card card;
  Judgement judgement;
  std::vector<Phase> phases;
  std::size_t worst = 0;  // the phase with the highest allocated bytes
  run::Census peak;       // alive at that moment
  std::int64_t device_bytes() const {
    return judgement.unlimited.reserved_peak + card.context.bytes();
  }
};

/// A change of the job, and what comes of it.
struct Change {
  std::string words;  // "recompute full"
  Verdict verdict = Verdict::does_not_fit;
  std::int64_t needed = 0;    // least bytes to reserve
  std::int64_t headroom = 0;  // negative: still short by so much
};

struct AssumptionEffect {
  spec::Assumption assumption;
  /// Allocated bytes of the peak under the other choices, less those of the plan: the range, 0
  /// included.
  std::int64_t low = 0, high = 0;
};

struct Option {
  const spec::OptionSpec* spec = nullptr;
  spec::Parallel parallel = spec::Parallel::none;
  RankJob job;
  std::shared_ptr<const Program> program;  // of rank 0; equal ranks share it
  Accuracy accuracy;
  Verdict verdict = Verdict::fits;
  std::string reason;
  std::vector<Gpu> gpus;
  std::vector<AssumptionEffect> assumptions;
  std::vector<Change> changes;  // where it does not fit: the cheapest that would
  std::vector<std::string> warnings;
};

struct Plan {
  std::vector<Option> options;  // in the order of the PlanSpec
  std::optional<std::size_t> recommended;
  std::string because;
  std::int64_t parameters = 0;  // of the first option's model
};

struct PlanSettings {
  bool effects = true;  // re-simulate what was assumed
  bool changes = true;  // re-simulate changes where an option does not fit
};

/// Throws InputError for jobs, models and strategies that cannot be expressed, all faults at once.
/// The PlanSpec must outlive the plan.
Plan make_plan(const spec::PlanSpec& spec, const PlanSettings& settings);

/// The changes that would make a job fit, cheapest first, each lowered and judged anew; when no
/// single one does, all of them together.
std::vector<Change> find_changes(const Option& option, const program::Lowering& lowering);

/// What the other choices for assumed words would do to the peak.
std::vector<AssumptionEffect> find_effects(const Option& option, const program::Lowering& lowering);

}  // namespace shardfit::search
