#pragma once
// Cases measured with DeepSpeed's engine.

#include "validate/cases.h"

namespace shardfit::validate {

/// The first thing in a case of DeepSpeed that has no place in a TrainingJob; empty: none.
std::string unsupported_deepspeed(const spec::Node& c);
/// Reads `deepspeed_config` and what goes with it into the job.
void read_deepspeed(const spec::Node& c, Case& out, Diagnostics& faults);

}  // namespace shardfit::validate
