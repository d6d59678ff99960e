#pragma once
// How routed experts run, in a job's words.

#include "program/training.h"
#include "search/training_job.h"
#include "spec/job_spec.h"

namespace shardfit::search {

struct Option;
struct Gpu;

/// Sets the experts' kernel and routing of `job` from "grouped_mm", "batched_mm", "eager"
/// (balanced), "eager:worst" or "eager:0.5,0.25,..." (a share an expert). Refuses other words,
/// shares that are no numbers from 0 on or of another count than the model's experts, and models
/// without experts.
void set_experts(const spec::Setting<std::string>& asked, const program::Lowering& lowering,
                 program::TrainingJob& job, Diagnostics& faults);

/// Whether the model has routed experts, by its file.
bool is_mixture(const spec::ModelSpec& model);

/// Says how Megatron-core runs the experts of a job's mixture, where the model is one.
void assume_experts(const program::Lowering& lowering, RankJob& job);

/// Why `more` holds or computes more than `less`, where experts are spread over ranks and the
/// routing sends more tokens to its own; empty where it does not.
std::string cause_in_experts(const Option& option, const Gpu& more, const Gpu& less);

}  // namespace shardfit::search
