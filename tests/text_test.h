#pragma once
// Text tests of the command line. A file holds cases one after the other:
//
//   # a remark
//   file plan.yaml
//   > model: x
//   $ shardfit plan plan.yaml --on h200
//   exit 0
//   | a line of standard output
//   ! a line of standard error
//
// Files stand in an empty working directory of the case's own file. SHARDFIT_UPDATE=1 in the
// environment writes what the program says now in place of what is expected.

#include <filesystem>
#include <string>
#include <vector>

namespace shardfit::test {

struct CommandResult {
  int code = 0;
  std::string out, err;
};

/// Words of a command as a shell would split them: spaces part, single or double quotes join.
std::vector<std::string> split_words(const std::string& command);

/// Runs a "shardfit ..." command in process, in the current directory. The source tree's path is
/// written as <source> in what comes back.
CommandResult run_command(const std::string& command);

/// Runs every case of a file; fails the running test where one differs, or updates the file.
void run_text_file(const std::filesystem::path& path);

}  // namespace shardfit::test
