#include "base/diagnostic.h"

#include <doctest/doctest.h>

using namespace shardfit;

namespace {

SourcePtr source(std::string text, std::string name = "tiny.yaml") {
  return std::make_shared<const Source>(Source{std::move(name), std::move(text)});
}

Location find(const SourcePtr& source, const std::string& word) {
  return {source, source->text.find(word), word.size()};
}

std::string message(const Diagnostics& faults) {
  try {
    faults.throw_if_any();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

const std::vector<std::string> keys{"head_dim", "heads", "hidden", "kv_heads"};

}  // namespace

TEST_CASE("half a name is taken for the first that goes on from it") {
  const std::vector<std::string> cards{"a100-40", "h100-pcie", "h100-sxm", "h200"};
  CHECK(closest("h100", cards) == "h100-pcie");
  CHECK(closest("h20", cards) == "h200");
  const std::vector<std::string> optimizers{"sgd", "adamw-fused", "adamw-foreach"};
  CHECK(closest("adam", optimizers) == "adamw-fused");
  CHECK(closest("ad", optimizers).empty());
}

TEST_CASE("a fault shows place, line, caret and what to do") {
  const SourcePtr text = source("a: 1\n\n    hiden: 4096\n");
  const Diagnostic fault{find(text, "hiden"), "unknown key 'hiden' in operator 'attention'",
                         suggest("hiden", keys)};
  CHECK(render(fault) ==
        "tiny.yaml:3:5: error: unknown key 'hiden' in operator 'attention'\n"
        "    hiden: 4096\n"
        "    ^~~~~\n"
        "  expected one of: head_dim, heads, hidden, kv_heads\n"
        "  did you mean 'hidden'?\n");
}

TEST_CASE("columns and carets count characters, not bytes") {
  const SourcePtr text = source("größe: ja, ünd\r\n");
  const Location where = find(text, "ünd");
  CHECK(where.column() == 12);
  CHECK(render({where, "m", {}}) ==
        "tiny.yaml:1:12: error: m\n    größe: ja, ünd\n               ^~~\n");
}

TEST_CASE("a fault in a long line shows a window of it that fits 80 columns") {
  const SourcePtr text = source(std::string(500, 'x') + " here " + std::string(500, 'y'));
  const std::string shown = render({find(text, "here"), "m", {}});
  CHECK(shown.find("    ..." + std::string(23, 'x') + " here yyy") != std::string::npos);
  std::size_t start = 0;
  while (start < shown.size()) {
    const std::size_t end = shown.find('\n', start);
    CHECK(end - start <= 80);
    start = end + 1;
  }
}

TEST_CASE("a fault at the end of the text, or of a whole file, has a place and no crash") {
  const SourcePtr text = source("a: [1\n");
  CHECK(render({{text, text->text.size(), 0}, "m", {}}) == "tiny.yaml:2:1: error: m\n");
  CHECK(render({{text, 1000, 5}, "m", {}}) == "tiny.yaml:2:1: error: m\n");
  CHECK(render({whole_file("no.yaml"), "no such file", {}}) == "no.yaml: error: no such file\n");
  CHECK(render({{}, "m", {"n"}}) == "error: m\n  n\n");
}

TEST_CASE("control characters are made harmless in an excerpt and in quotes") {
  const SourcePtr text = source("a\x1b[31m: 1\n");
  CHECK(render({find(text, "a"), "m", {}}).find('\x1b') == std::string::npos);
  CHECK(quoted("a\x1b\n\tb") == "'a\\x1b\\n\\tb'");
  CHECK(quoted(std::string(100, 'a')) == "'" + std::string(60, 'a') + "...'");
}

TEST_CASE("faults come in file order, whatever order they were found in") {
  const SourcePtr text = source("one\ntwo\n");
  Diagnostics faults;
  CHECK_NOTHROW(faults.throw_if_any());
  faults.error(find(text, "two"), "second");
  faults.error(find(text, "one"), "first");
  const std::string shown = message(faults);
  CHECK(shown.find("first") < shown.find("second"));
}

TEST_CASE("at most 20 faults are shown and the rest counted") {
  const SourcePtr text = source("x");
  Diagnostics faults;
  for (int i = 0; i < 20; ++i) faults.error({text, 0, 1}, "fault " + std::to_string(i));
  CHECK(message(faults).find("more error") == std::string::npos);
  faults.error({text, 0, 1}, "fault 20");
  CHECK(message(faults).find("\nand 1 more error\n") != std::string::npos);
  faults.error({text, 0, 1}, "fault 21");
  faults.error({text, 0, 1}, "fault 21");  // a repeat is no further fault
  CHECK(message(faults).find("\nand 2 more errors\n") != std::string::npos);
}

TEST_CASE("edit distance counts insert, delete, replace and swap") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("", "abcd") == 4);
  CHECK(edit_distance("hiden", "hidden") == 1);
  CHECK(edit_distance("haeds", "heads") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("ca", "abc") == 3);  // alignment: no edit inside a swapped pair
}

TEST_CASE("a suggestion is made when a word is near and not when it is far") {
  CHECK(closest("hiden", keys) == "hidden");
  CHECK(closest("KV-Heads", keys) == "kv_heads");
  CHECK(closest("h20O", std::vector<std::string>{"h20", "h200"}) == "h200");
  CHECK(closest("vocabulary", keys) == "");
  CHECK(closest("", keys) == "");
  CHECK(closest(std::string(100'000, 'a'), keys) == "");
  CHECK(suggest("zzz", keys) ==
        std::vector<std::string>{"expected one of: head_dim, heads, hidden, kv_heads"});
}
