#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace shardfit::cli {

/// Exit codes of the program.
inline constexpr int fits = 0;          // or: done
inline constexpr int does_not_fit = 1;  // or: an expectation does not hold
inline constexpr int bad_input = 2;
inline constexpr int our_bug = 3;
inline constexpr int not_decided = 4;  // stopped, by a budget or an interrupt, before it was known

/// The program: arguments (without its own name) in, text out, exit code back. Reads files, never
/// the network; throws nothing.
int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace shardfit::cli
