// What the documents show is what the program says: every ```console block is run from the root.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "text_test.h"

namespace fs = std::filesystem;

namespace {

const fs::path root = SHARDFIT_SOURCE_DIR;

std::vector<fs::path> documents() {
  std::vector<fs::path> files{root / "README.md"};
  for (const char* folder : {"docs", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() == ".md") files.push_back(entry.path());
    }
  }
  return files;
}

/// The document with the output of each command as it is now; counts the commands.
std::string with_real_output(const fs::path& path, std::size_t& commands) {
  std::ifstream in(path);
  std::string out;
  bool console = false;
  for (std::string line; std::getline(in, line);) {
    if (console && line != "```") continue;  // output of before
    out += line + "\n";
    if (line == "```") console = false;
    if (line != "```console") continue;
    console = true;
    std::getline(in, line);
    CAPTURE(line);
    REQUIRE(line.starts_with("$ ./shardfit"));
    const auto result = shardfit::test::run_command(line.substr(4));
    out += line + "\n" + result.out;
    ++commands;
  }
  return out;
}

}  // namespace

TEST_CASE("documents show the program's real output") {
  const fs::path before = fs::current_path();
  fs::current_path(root);
  std::size_t commands = 0;
  for (const fs::path& path : documents()) {
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    const std::string now = with_real_output(path, commands);
    CAPTURE(path.string());
    if (std::getenv("SHARDFIT_UPDATE") && now != text.str()) {
      std::ofstream(path) << now;
    } else {
      CHECK(text.str() == now);
    }
  }
  fs::current_path(before);
  CHECK(commands >= 2);
}
