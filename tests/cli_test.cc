#include "cli/cli.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/command_line.h"
#include "text_test.h"

using namespace shardfit;
using test::run_command;

TEST_CASE("every text test of the command line says what its file expects") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(SHARDFIT_SOURCE_DIR "/tests/cli")) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 2);
  for (const auto& file : files) test::run_text_file(file);
}

TEST_CASE("words of a test command are split as a shell splits them") {
  using Words = std::vector<std::string>;
  CHECK(test::split_words("a  b 'c d' e'f'\"g h\" ''") == Words{"a", "b", "c d", "efg h", ""});
}

TEST_CASE("arguments have places, with and without an equals sign, quoted where needed") {
  const cli::CommandLine line({"plan", "my file", "--on", "h200", "--on=2xb200", "--model="});
  CHECK(line.where(1).offset == 6);
  const auto on = line.values("on");
  REQUIRE(on.size() == 2);
  CHECK(on[0].text == "h200");
  CHECK(on[0].where.column() == 21);
  CHECK(on[1].text == "2xb200");
  CHECK(on[1].where.column() == 31);
  CHECK(line.values("model").at(0).text.empty());
  CHECK(line.job().child("on")->children.size() == 2);
}

TEST_CASE("every command explains itself and fits 80 columns") {
  const std::string all = run_command("shardfit --help").out;
  std::istringstream lines(all.substr(all.find("Subcommands:")));
  std::string line;
  std::getline(lines, line);
  std::size_t commands = 0;
  while (std::getline(lines, line) && line.starts_with("  ")) {
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    const test::CommandResult help = run_command("shardfit " + name + " --help");
    CAPTURE(name);
    CHECK(help.code == cli::fits);
    CHECK(help.err == "");
    std::istringstream text(help.out);
    for (std::string shown; std::getline(text, shown);) {
      CAPTURE(shown);
      CHECK(shown.size() <= 80);
    }
    ++commands;
  }
  CHECK(commands > 0);
}

TEST_CASE("a stream that cannot be written ends no run in a crash") {
  std::ofstream full("/dev/full");
  std::ostringstream err;
  CHECK(cli::run({"--help"}, full, err) == cli::fits);
}
