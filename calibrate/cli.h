#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace shardfit::calibrate {

/// Exit codes, beside the planner's: 0 done, confirmed or right.
inline constexpr int done = 0;
inline constexpr int off = 1;  // a benchmark failed, a prediction is off, a result is wrong
inline constexpr int bad_input = 2;
inline constexpr int our_bug = 3;
inline constexpr int waived = 4;  // a device was needed and none is there

/// The program: arguments without its own name; throws nothing.
int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace shardfit::calibrate
