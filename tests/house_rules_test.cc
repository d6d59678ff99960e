// Rules of the house that only a look at the sources can hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

const fs::path root = SHARDFIT_SOURCE_DIR;

/// Left to right: a room may include itself and the rooms before it.
constexpr std::array<std::string_view, 12> rooms{"base",   "spec",     "tensor", "model",
                                                 "graph",  "program",  "run",    "partition",
                                                 "search", "validate", "report", "cli"};

std::ptrdiff_t room_index(std::string_view room) {
  return std::find(rooms.begin(), rooms.end(), room) - rooms.begin();
}

bool is_source(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

std::vector<fs::path> sources_under(const char* folder) {
  std::vector<fs::path> files;
  if (!fs::exists(root / folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    if (entry.is_regular_file() && is_source(entry.path())) files.push_back(entry.path());
  }
  return files;
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// What stands between the quotes or angle brackets of an include line, "" for another line.
std::string included(const std::string& line, char open, char close) {
  if (line.rfind("#include ", 0) != 0) return "";
  const std::size_t from = line.find(open);
  if (from == std::string::npos) return "";
  return line.substr(from + 1, line.find(close, from + 1) - from - 1);
}

/// Why a room's file may not include `path`, "" where it may.
std::string include_fault(std::string_view room, const std::string& path) {
  const std::string target = path.substr(0, path.find('/'));
  const auto at = static_cast<std::size_t>(room_index(target));
  if (at == rooms.size()) return "'" + path + "' lies in no room";
  if (room_index(room) < room_index(target)) return "includes '" + path + "' to its right";
  return "";
}

}  // namespace

TEST_CASE("a room includes only itself and the rooms to its left") {
  CHECK(include_fault("base", "spec/node.h") != "");
  CHECK(include_fault("cli", "nowhere/x.h") != "");
  CHECK(include_fault("spec", "base/units.h") == "");
  std::size_t includes = 0;
  for (const fs::path& file : sources_under("planner")) {
    const std::string room = fs::relative(file, root / "planner").begin()->string();
    for (const std::string& line : lines_of(file)) {
      const std::string path = included(line, '"', '"');
      if (path.empty()) continue;
      CAPTURE(file.string());
      CHECK(include_fault(room, path) == "");
      ++includes;
    }
  }
  CHECK(includes > 10);
}

TEST_CASE("a heavy library is included by one file of the planner") {
  for (const char* library : {"yaml.h", "CLI/", "boost/graph/"}) {
    std::vector<std::string> users;
    for (const fs::path& file : sources_under("planner")) {
      for (const std::string& line : lines_of(file)) {
        if (included(line, '<', '>').rfind(library, 0) != 0) continue;
        if (users.empty() || users.back() != file.string()) users.push_back(file.string());
      }
    }
    CAPTURE(library);
    CAPTURE(users.size());
    CHECK(users.size() <= 1);
  }
}

TEST_CASE("no source file is longer than 500 lines") {
  std::size_t files = 0;
  for (const char* folder : {"planner", "calibrate", "tests", "tools"}) {
    for (const fs::path& file : sources_under(folder)) {
      CAPTURE(file.string());
      CHECK(lines_of(file).size() <= 500);
      ++files;
    }
  }
  CHECK(files > 10);
}
