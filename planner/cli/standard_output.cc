#include "cli/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <iostream>

#include "cli/cli.h"

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

}  // namespace shardfit::cli
