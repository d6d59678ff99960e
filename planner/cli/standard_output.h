#pragma once
#include <iosfwd>
#include <string>

namespace shardfit::cli {

/// The exit code of a program of this name that has written to std::cout: `code`, or bad_input,
/// with a line to std::cerr, where the output was lost. A reader that has closed it ("| head") has
/// lost nothing.
int after_output(int code, const std::string& program);

/// Whether what is written to `err` is seen by a person: it is std::cerr, on a terminal.
bool is_terminal(const std::ostream& err);

/// Faults as they are printed. On a terminal lines of more than 80 columns are broken between
/// words, but for what is quoted of a file; other programs find one fault a line.
std::string fault_text(const std::string& faults, bool terminal);

}  // namespace shardfit::cli
