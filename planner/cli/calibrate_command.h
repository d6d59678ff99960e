#pragma once
// `shardfit calibrate ...`: hands over to the program that talks to cards.

#include <iosfwd>
#include <string>
#include <vector>

namespace shardfit::cli {

/// Runs shardfit-calibrate, which is built beside this program, with these arguments; its exit
/// code.
int calibrate_command(const std::vector<std::string>& arguments, std::ostream& out,
                      std::ostream& err);

}  // namespace shardfit::cli
