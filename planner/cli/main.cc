#include <malloc.h>

#include <climits>
#include <csignal>
#include <iostream>

#include "cli/cli.h"
#include "cli/standard_output.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe ends the output, not the program
  std::ios::sync_with_stdio(false);
  // Memory that was given back would be asked for again: a fifth of the page faults of a plan.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = shardfit::cli::run(arguments, std::cout, std::cerr);
  return shardfit::cli::after_output(code, "shardfit");
}
