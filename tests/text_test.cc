#include "text_test.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/cli.h"
#include "support.h"

namespace shardfit::test {
namespace {

namespace fs = std::filesystem;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
  return text;
}

/// Each line of `text` behind a mark; a last line without its newline is marked as such.
std::string marked(const std::string& text, const std::string& mark) {
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);) {
    out += line.empty() ? mark + "\n" : mark + " " + line + "\n";
  }
  if (!text.empty() && text.back() != '\n') out += mark + " (no newline at the end)\n";
  return out;
}

std::string expectation(const CommandResult& result) {
  return "exit " + std::to_string(result.code) + "\n" + marked(result.out, "|") +
         marked(result.err, "!");
}

/// The working directory of a test, with the one before put back at the end.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const fs::path& path) : before_(fs::current_path()) {
    fs::current_path(path);
  }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;
  ~WorkingDirectory() {
    std::error_code ignored;
    fs::current_path(before_, ignored);
  }

 private:
  fs::path before_;
};

bool is_expectation(const std::string& line) {
  return line.starts_with("exit ") || line.starts_with("|") || line.starts_with("!");
}

}  // namespace

std::vector<std::string> split_words(const std::string& command) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // a word has begun, perhaps an empty one
  char quote = '\0';
  for (const char c : command) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      open = true;
    } else if (c == ' ') {
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(word);
  return words;
}

CommandResult run_command(const std::string& command) {
  std::vector<std::string> words = split_words(replaced(command, "<source>", SHARDFIT_SOURCE_DIR));
  REQUIRE(!words.empty());
  REQUIRE(words.front() == "shardfit");
  words.erase(words.begin());
  std::ostringstream out;
  std::ostringstream err;
  CommandResult result;
  result.code = cli::run(words, out, err);
  result.out = replaced(out.str(), SHARDFIT_SOURCE_DIR, "<source>");
  result.err = replaced(err.str(), SHARDFIT_SOURCE_DIR, "<source>");
  return result;
}

void run_text_file(const fs::path& path) {
  std::ifstream in(path);
  REQUIRE_MESSAGE(in.good(), path.string());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);

  const TemporaryFile anchor("x");  // its folder is the working directory
  const WorkingDirectory inside(fs::path(anchor.path).parent_path());
  fs::remove(anchor.path);

  std::string updated;
  std::ofstream file;
  std::size_t commands = 0;
  for (std::size_t i = 0; i < lines.size();) {
    const std::string line = lines[i++];
    updated += line + "\n";
    if (line.starts_with("file ")) {
      const fs::path name = line.substr(5);
      if (name.has_parent_path()) fs::create_directories(name.parent_path());
      file.close();
      file.open(name, std::ios::binary | std::ios::trunc);
    } else if (line.starts_with(">")) {
      file << (line.size() > 2 ? line.substr(2) : "") << "\n";
    } else if (line.starts_with("$ ")) {
      file.close();
      std::string expected;
      while (i < lines.size() && is_expectation(lines[i])) expected += lines[i++] + "\n";
      const std::string said = expectation(run_command(line.substr(2)));
      updated += said;
      ++commands;
      if (std::getenv("SHARDFIT_UPDATE")) continue;
      CAPTURE(path.filename().string());
      CAPTURE(line);
      CHECK(said == expected);
    }
  }
  CHECK(commands > 0);
  if (std::getenv("SHARDFIT_UPDATE")) std::ofstream(path) << updated;
}

}  // namespace shardfit::test
