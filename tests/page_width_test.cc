// What a terminal of 80 columns shows: no line of a table is broken by it.

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "text_test.h"

using namespace shardfit;

namespace {

const std::string examples = SHARDFIT_SOURCE_DIR "/examples/";

/// Characters of a line of UTF-8.
std::size_t width_of(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

TEST_CASE("every line of the examples' tables and of the help fits 80 columns") {
  const std::string pair = examples + "02-one-h200-or-two-b200/";
  const std::string graph = examples + "03-a-graph-of-your-own/";
  for (const std::string& command :
       {"plan " + examples + "01-does-it-fit/plan.yaml", "plan " + pair + "plan.yaml",
        "plan " + pair + "plan.yaml --global-batch 512 --on 2xb200",
        "plan " + pair + "lora-70b.yaml", "plan " + graph + "plan.yaml",
        "plan " + examples + "04-two-cards-without-a-bridge/plan.yaml",
        "batch " + graph + "plan.yaml", "graph " + graph + "network.yaml --micro-batch 32",
        std::string("partition " SHARDFIT_SOURCE_DIR
                    "/tests/data/solver/pipedream/vgg16.graph.txt --gpus 2"),
        std::string("--help"), std::string("plan --help"), std::string("batch --help"),
        std::string("graph --help"), std::string("partition --help"), std::string("replay --help"),
        std::string("validate --help"), std::string("compare --help")}) {
    CAPTURE(command);
    const test::CommandResult result = test::run_command("shardfit " + command);
    CHECK(result.code < 2);
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      CHECK_MESSAGE(width_of(line) <= 80, line);
    }
  }
}
