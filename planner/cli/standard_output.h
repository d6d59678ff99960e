#pragma once
#include <string>

namespace shardfit::cli {

/// The exit code of a program of this name that has written to std::cout: `code`, or bad_input,
/// with a line to std::cerr, where the output was lost. A reader that has closed it ("| head") has
/// lost nothing.
int after_output(int code, const std::string& program);

}  // namespace shardfit::cli
