// What no file should hold: each a located error, never a crash, a hang or a wrong value.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <random>

#include "spec/reader.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::spec;
using test::errors_of;

namespace {

std::string read_faults(const std::string& text, const std::string& name) {
  return errors_of([&] {
    Diagnostics faults;
    read_text(test::source(text, name), faults);
    faults.throw_if_any();
  });
}

std::string file_faults(const std::string& path) {
  return errors_of([&] {
    Diagnostics faults;
    read_file(path, faults);
    faults.throw_if_any();
  });
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("missing, empty and blank files, directories and binary files are named as such") {
  CHECK(file_faults("/nowhere/x.yaml") == "/nowhere/x.yaml: error: no such file\n");
  CHECK(file_faults("/").find("is a directory") != std::string::npos);
  CHECK(file_faults(test::TemporaryFile("").path).find("is empty") != std::string::npos);
  CHECK(file_faults(test::TemporaryFile("\n  \n").path).find("holds no data") != std::string::npos);
  CHECK(file_faults(test::TemporaryFile("# only this\n").path).find("holds no data") !=
        std::string::npos);
  CHECK(file_faults(test::TemporaryFile(std::string("a: 1\0b", 6)).path).find("binary file") !=
        std::string::npos);
  CHECK(file_faults(test::TemporaryFile("a: 1\nb: \xFF\xFE\n").path).find("byte 8, line 2") !=
        std::string::npos);
  for (const char* bad : {"\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80"}) {
    CHECK(file_faults(test::TemporaryFile(bad).path).find("not UTF-8") != std::string::npos);
  }
  CHECK(file_faults("/dev/zero").find("is larger than 32.0 MiB") != std::string::npos);
}

TEST_CASE("a pipe's text may be asked for more than once") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const std::string text = "model: tiny\n";
  REQUIRE(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(ends[1]);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  for (int time = 0; time < 2; ++time) CHECK(spec::read_source(path)->text == text);
  close(ends[0]);
}

TEST_CASE("a file of 100 MB is refused by its size, unread") {
  test::TemporaryFile file("a: 1\n");
  file.grow(100'000'000);
  const auto start = std::chrono::steady_clock::now();
  CHECK(file_faults(file.path).find("is larger than 32.0 MiB, the most that is read") !=
        std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
}

TEST_CASE("nesting 100,000 deep is an error with its place, in either format") {
  constexpr int deep = 100'000;
  const char* const expected = "nested deeper than 100";
  for (const char* opening : {"[", "{a: ", "- ", "? ", "[{a: ", "a: [", "- [", "[? "}) {
    CAPTURE(opening);
    const std::string shown = read_faults(repeated(opening, deep), "t.yaml");
    CHECK(shown.find("t.yaml:1:") == 0);
  }
  std::string blocks;
  for (int i = 0; i < 2000; ++i) blocks += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  CHECK(read_faults(blocks, "t.yaml").find(expected) != std::string::npos);
  CHECK(read_faults(repeated("[", deep), "t.json").find(expected) != std::string::npos);
  CHECK(read_faults(repeated("{\"a\":", deep), "t.json").find(expected) != std::string::npos);
  CHECK(read_faults(repeated("[", deep) + repeated("]", deep), "t.json").find(expected) !=
        std::string::npos);
  CHECK(read_faults(repeated("[", 100) + repeated("]", 100), "t.json") == "");
  CHECK(read_faults(repeated("[", 101) + repeated("]", 101), "t.json").find("t.json:1:101") == 0);
  CHECK(read_faults(repeated("[", 100) + repeated("]", 100), "t.yaml") == "");
  CHECK(read_faults(repeated("[", 101) + repeated("]", 101), "t.yaml").find("t.yaml:1:101") == 0);
}

TEST_CASE("anchors, aliases, merge keys and tags are refused, each at its place") {
  const std::string shown = read_faults(
      "a: &x [1, 2]\nb: *x\nc:\n  <<: {d: 1}\ne: !!python/object:os.system ls\nf: !x 1\n",
      "t.yaml");
  for (const char* text : {"t.yaml:1:4: error: YAML anchors", "t.yaml:2:4: error: YAML aliases",
                           "t.yaml:4:3: error: YAML merge keys", "t.yaml:5:4: error: YAML tags",
                           "t.yaml:6:4: error: YAML tags"}) {
    CAPTURE(text);
    CHECK(shown.find(text) != std::string::npos);
  }
}

TEST_CASE("a billion laughs stay one line each") {
  std::string text = "a0: &a0 [lol]\n";
  for (int i = 1; i < 40; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + below + ", " + below +
            ", " + below + "]\n";
  }
  const std::string shown = read_faults(text, "t.yaml");
  CHECK(shown.find("YAML anchors are not supported") != std::string::npos);
  CHECK(shown.find("more errors") != std::string::npos);
}

TEST_CASE("broken YAML and JSON say where") {
  for (const char* text :
       {"a: [1, 2", "a: 'x", "a: {b: 1", "a: b: c", "\ta: 1\n", "a: 1\n b: 2\n", "a: @x", "%x", "}",
        "a: |x\n", "- a\nb: 1\n", "[a: 1: 2]", "? [a]\n: 1\n", "a: 1\n---\nb: 2\n", "a: \"\\q\""}) {
    CAPTURE(text);
    CHECK(read_faults(text, "t.yaml").find("t.yaml:") == 0);
  }
  for (const char* text :
       {"{",     "{\"a\"",   "{\"a\": }", "[1,]",       "[1 2]", "{\"a\": 1,}", "tru",
        "[01]",  "[1.]",     "[.5]",      "[+1]",       "\"a",   "\"\\x\"",     "\"\\ud800\"",
        "{} {}", "// c\n{}", "{'a': 1}",  "[\"a\tb\"]", "[-]",   "[nan]"}) {
    CAPTURE(text);
    CHECK(read_faults(text, "t.json").find("t.json:") == 0);
  }
  CHECK(read_faults("[1,]", "t.json").find("no comma after the last") != std::string::npos);
  CHECK(read_faults("{ // c\n}", "t.json").find("no comments") != std::string::npos);
}

TEST_CASE("a map of 100,000 equal keys is answered at once") {
  const auto start = std::chrono::steady_clock::now();
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += "\"k\": 1, ";
  text += "\"k\": 1}";
  CHECK(read_faults(text, "t.json").find("and 99980 more errors") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a text of more than a million values is refused, one of a million read") {
  CHECK(read_faults("[" + repeated("1,", 999'998) + "1]", "t.json") == "");
  const std::string shown = read_faults("[" + repeated("1,", 999'999) + "1]", "t.json");
  CHECK(shown.find("t.json:1:2000000: error: holds more than 1,000,000 values") == 0);
  CHECK(read_faults(repeated("- 1\n", 1'000'001), "t.yaml").find("more than 1,000,000") !=
        std::string::npos);
}

TEST_CASE("a map of 100,000 unknown keys is answered at once") {
  const auto start = std::chrono::steady_clock::now();
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "heads" + std::to_string(i) + ": 1\n";
  const std::string shown = errors_of([&] {
    Diagnostics faults;
    const Node root = read_text(test::source(text), faults);
    MapView map(root, "model", faults);
    for (const char* key : {"hidden", "heads", "layers"}) map.integer(key);
    map.finish();
    faults.throw_if_any();
  });
  CHECK(shown.find("did you mean 'heads'?") != std::string::npos);
  CHECK(shown.find("and 99980 more errors") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("random bytes and random edits of good texts never crash a reader") {
  const std::string good =
      "model: x\njob: {task: full, sequence: 4096, list: [1, 2.5, \"a\\n\", 'b']}\n"
      "options:\n  - on: h200\n  - {on: 2xb200, parallel: ddp}\ntext: |\n  a\n  b\n";
  const std::string alphabet = "{}[]:,-?&*!|>'\"%@`#<= \n\t\\ax01.~";
  for (unsigned seed = 0; seed < test::fuzz_rounds(3000); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::string text = good;
    if (seed % 3 == 0) {
      text.clear();
      for (unsigned i = 0; i < 1 + random() % 60; ++i) text += alphabet[random() % alphabet.size()];
    } else {
      for (unsigned i = 0; i < 1 + random() % 6; ++i) {
        const std::size_t at = random() % text.size();
        if (random() % 3 == 0) {
          text.erase(at, 1 + random() % 8);
        } else {
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
        }
        if (text.empty()) text = "a";
      }
    }
    for (const char* name : {"t.yaml", "t.json"}) {
      const std::string shown = read_faults(text, name);
      CHECK((shown.empty() || shown.find(": error: ") != std::string::npos));
    }
  }
}
