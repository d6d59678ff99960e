#pragma once
// Cases measured with Megatron-core.

#include "validate/cases.h"

namespace shardfit::validate {

/// The first thing in a case of Megatron-core that has no place in a TrainingJob; empty: none.
std::string unsupported_megatron(const spec::Node& c);
/// Reads degrees, switches and recomputation into the job.
void read_megatron(const spec::Node& c, Case& out, Diagnostics& faults);

}  // namespace shardfit::validate
