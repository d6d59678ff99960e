#pragma once
// `shardfit compare PLAN FILE...`: the person's own run beside the plan.

#include <iosfwd>
#include <string>
#include <vector>

namespace shardfit::cli {

struct CompareOptions {
  std::string plan;
  std::vector<std::string> files;  // in the order of ranks where they do not say
  std::string option;              // of the plan; "": the recommended one
  bool json = false;
};

/// 0: every rank within the tolerances (validate/planned.h); 1: not. Throws InputError.
int compare_command(const CompareOptions& options, std::ostream& out);

}  // namespace shardfit::cli
