#pragma once
// How routed experts run, in a job's words.

#include "program/training.h"
#include "spec/job_spec.h"

namespace shardfit::search {

/// Sets the experts' kernel and routing of `job` from "grouped_mm", "batched_mm", "eager"
/// (balanced), "eager:worst" or "eager:0.5,0.25,..." (a share an expert). Refuses other words,
/// shares that are no numbers from 0 on or of another count than the model's experts, and models
/// without experts.
void set_experts(const spec::Setting<std::string>& asked, const program::Lowering& lowering,
                 program::TrainingJob& job, Diagnostics& faults);

}  // namespace shardfit::search
