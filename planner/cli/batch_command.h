#pragma once
#include <iosfwd>

#include "cli/plan_command.h"

namespace shardfit::cli {

/// `shardfit batch`: the largest micro-batch by sequence, and the longest sequence, of each option.
/// 0 where some job fits on every option, 1 where not. Throws InputError.
int batch_command(const PlanOptions& options, const std::vector<spec::Node>& sequences,
                  std::ostream& out, std::ostream& err);

}  // namespace shardfit::cli
