#include "cli/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <iostream>
#include <sstream>

#include "cli/cli.h"
#include "report/report.h"

namespace shardfit::cli {
namespace {

/// Whoever read standard output has closed it ("| head").
bool reader_has_gone() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR);
}

}  // namespace

int after_output(int code, const std::string& program) {
  std::cout.flush();
  if (std::cout.good() || reader_has_gone()) return code;
  std::cerr << program << ": the output could not be written: is the disk full?\n";
  return bad_input;
}

bool is_terminal(const std::ostream& err) {
  return &err == &std::cerr && isatty(STDERR_FILENO) != 0;
}

std::string fault_text(const std::string& faults, bool terminal) {
  if (!terminal) return faults;
  std::string out;
  std::istringstream lines(faults);
  for (std::string line; std::getline(lines, line);) {
    const bool quoted = line.starts_with(" ");
    out += quoted ? line + "\n" : report::wrapped(line, 2);
  }
  return out;
}

}  // namespace shardfit::cli
