#include <csignal>
#include <iostream>

#include "calibrate/cli.h"
#include "cli/standard_output.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = shardfit::calibrate::run(arguments, std::cout, std::cerr);
  return shardfit::cli::after_output(code, "shardfit calibrate");
}
