#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace shardfit::cli {

/// `shardfit validate`: predicts measured cases and prints the errors. A directory means every case
/// list below it (models, traces and notes are left out). Exit code 0, or 2 where a file is bad;
/// the other files are predicted all the same.
int validate_command(const std::vector<std::string>& paths, bool json, std::ostream& out,
                     std::ostream& err);

}  // namespace shardfit::cli
