#pragma once
// Measured cases of torchtitan's Trainer.

#include <string>

#include "validate/cases.h"

namespace shardfit::validate {

/// What keeps a case from being expressed; "" where nothing does.
std::string unsupported_titan(const spec::Node& a_case);

/// Degrees, FSDP's units and settings of a case.
void read_titan(const spec::Node& a_case, Case& out, Diagnostics& faults);

}  // namespace shardfit::validate
