#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "cli/cli.h"

namespace {

/// Whoever read standard output has closed it ("| head").
bool reader_has_gone() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe ends the output, not the program
  std::ios::sync_with_stdio(false);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = shardfit::cli::run(arguments, std::cout, std::cerr);
  std::cout.flush();
  if (std::cout.good() || reader_has_gone()) return code;
  std::cerr << "shardfit: the output could not be written: is the disk full?\n";
  return shardfit::cli::bad_input;
}
