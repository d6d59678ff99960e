#include <cerrno>
#include <csignal>
#include <iostream>

#include "cli/cli.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe ends the output, not the program
  std::ios::sync_with_stdio(false);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = shardfit::cli::run(arguments, std::cout, std::cerr);
  errno = 0;
  std::cout.flush();
  if (std::cout.good() || errno == EPIPE) return code;
  std::cerr << "shardfit: the output could not be written\n";
  return shardfit::cli::our_bug;
}
