#pragma once
// A job as a person states it, on a device, as the job the lowering takes.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/training.h"
#include "run/allocator_settings.h"
#include "search/profile.h"
#include "spec/job_spec.h"

namespace shardfit::search {

/// One rank's job, with everything that was taken for granted on the way.
struct RankJob {
  program::TrainingJob job;
  Profile profile;
  spec::Batch batch;
  run::AllocatorSettings allocator;
  spec::Optimizer optimizer = spec::Optimizer::adamw_fused;
  std::vector<spec::Assumption> assumptions;
  std::vector<std::string> warnings;
};

/// The job of one rank where `ranks` see other samples; its framework must have a profile. Words
/// that no program is modelled for yet are faults at their place; then nothing is given.
std::optional<RankJob> rank_job(const spec::OptionSpec& option, std::int64_t ranks,
                                const program::Lowering& lowering, Diagnostics& faults);

/// A policy of selective recompute by its word.
struct SelectivePolicy {
  std::string name;
  program::Recompute kind = program::Recompute::none;
  std::int64_t blocks = 0;           // of first-N-blocks
  std::vector<std::int64_t> chosen;  // of blocks-LIST
};
/// Those with a fixed name.
std::span<const SelectivePolicy> selective_policies();
/// Nothing where the word is none: one of the above, "first-N-blocks" with N from 1, or
/// "blocks-LIST" with blocks counted from 0 in the order they first run ("blocks-0-5,8").
std::optional<SelectivePolicy> recompute_policy(const std::string& name);

/// The optimizer and its implementation as the lowering names them; false where it has none.
bool set_optimizer(spec::Optimizer optimizer, program::TrainingJob& job);

/// Parameters and autocast of a precision.
void set_precision(spec::Precision precision, program::TrainingJob& job);

}  // namespace shardfit::search
