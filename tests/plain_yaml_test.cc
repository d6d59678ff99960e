// What the quick reader of YAML takes it reads as libyaml does; what it does not take it leaves
// alone.
#include <doctest/doctest.h>

#include <random>

#include "spec/formats.h"
#include "support.h"

namespace shardfit {
namespace {

using spec::Node;

std::string place(const Location& where) {
  return std::to_string(where.offset) + "+" + std::to_string(where.length);
}

/// Everything a tree says.
void write(const Node& node, std::string& out) {
  out += std::to_string(static_cast<int>(node.kind)) + (node.untyped ? "u" : "");
  out += place(node.where) + "'" + node.text + "'";
  if (node.key_where.known()) out += "'" + node.key + "'" + place(node.key_where);
  out += '(';
  for (const Node& child : node.children) write(child, out);
  out += ')';
}

std::string written(const Node& node, const Diagnostics& faults) {
  std::string out;
  write(node, out);
  for (const Diagnostic& fault : faults.found()) out += render(fault);
  return out;
}

std::string by_libyaml(const SourcePtr& text) {
  Diagnostics faults;
  try {
    const Node root = spec::read_any_yaml(text, faults);
    return written(root, faults);
  } catch (const InputError& error) {
    return error.what();
  }
}

/// True where the quick reader took the text; then both must agree.
bool check_equal(const std::string& text) {
  const SourcePtr source = test::source(text);
  Diagnostics faults;
  const std::optional<Node> root = spec::read_plain_yaml(source, faults);
  if (!root) {
    CHECK(faults.empty());
    return false;
  }
  CAPTURE(text);
  REQUIRE(written(*root, faults) == by_libyaml(source));
  return true;
}

std::vector<std::string> shipped_files() {
  std::vector<std::string> texts;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(SHARDFIT_SOURCE_DIR "/model_specs")) {
    if (entry.path().extension() != ".yaml") continue;
    texts.push_back(spec::read_source(entry.path().string())->text);
  }
  return texts;
}

const std::vector<std::string> written_by_hand = {
    "a: 1\nb:\n  c: [1, 'two', \"three\", {four: 4.0}]\n  d: # said\n    e: f # g\n",
    "- a\n- b: 1\n  c: 2\n-\n  d: 3\n- - e\n  - f\n- [g,\n   h, # i\n   ]\n- {j: k,\n l: m}\n",
    "list:\n- 1\n- 2\nother:\n  - 3\n  - x y z\nlast: a b#c:d\n",
    "{a: {b: [c, d], 'e': f}, \"g\":h}\n",
    "operators:\n  a: {kind: linear, from: [x, y], outputs: 4 * (pass + 1)}\n  b: {kind: relu, "
    "from: a}\n",
    "a: -1\nb: - 1\n",
    "a: b\n c\nd: e\n",
    "\n\n# only\n\n  x: y\n\n  # more\n  z:   w   \n",
    "k: 'it''s'\nq: \"a\\nb\"\n",
    "a: &b c\nd: *b\n<<: e\nf: !g h\n",
    "a: |\n  b\nc: >\n  d\n",
    "a:\nb: ~\nc: null\n",
    "\xC3\xA9: \xE2\x82\xAC # \xF0\x9F\x98\x80\nb: '\xC2\xA0'\n",
    "? a\n: b\n",
    "a: [b: c, d]\n",
    "---\na: b\n...\n",
    "a: b\na: c\nd: {e: 1, e: 2}\n",
    "a : b\n'c' : d\n\"e\": - f\n",
};

/// Characters that mean something, and some that do not.
constexpr std::string_view letters =
    "  \n\n--::,,[[]]{}{}##''\"\"aabb10.~?&*!|>%@`\\<=\t\r\xC2\x85\xC3\xA9";

std::string changed(std::string text, const std::vector<std::string>& texts, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        text.insert(at, 1, letters[below(letters.size())]);
        break;
      case 1:
        text.erase(at, 1 + below(3));
        break;
      case 2:
        if (at < text.size()) text[at] = letters[below(letters.size())];
        break;
      case 3: {  // a piece of it again, elsewhere
        const std::string piece = text.substr(at, below(20));
        text.insert(below(text.size() + 1), piece);
        break;
      }
      case 4: {  // the end of another text
        const std::string& other = texts[below(texts.size())];
        text = text.substr(0, at) + other.substr(below(other.size()));
        break;
      }
      default: {  // another indentation
        const std::size_t line = text.find('\n', at);
        if (line != std::string::npos) text.insert(line + 1, below(4), ' ');
        break;
      }
    }
  }
  return text;
}

}  // namespace

TEST_CASE("plain yaml: texts by hand and shipped files are read as libyaml reads them") {
  std::size_t taken = 0;
  for (const std::string& text : written_by_hand) taken += check_equal(text) ? 1 : 0;
  CHECK(taken == 8);
  std::size_t quick = 0, all = 0;
  for (const std::string& text : shipped_files()) {
    quick += check_equal(text) ? 1 : 0;
    ++all;
  }
  CHECK(4 * quick >= 3 * all);
}

TEST_CASE("plain yaml: texts changed at random are read as libyaml reads them, or left to it") {
  std::mt19937 random(7);
  std::size_t taken = 0;
  const unsigned rounds = test::fuzz_rounds(20'000);
  for (unsigned seed = 0; seed < rounds; ++seed) {
    CAPTURE(seed);
    const std::string& text = written_by_hand[random() % written_by_hand.size()];
    taken += check_equal(changed(text, written_by_hand, random)) ? 1 : 0;
  }
  CHECK(taken > rounds / 10);
}

TEST_CASE("plain yaml: any few characters are read as libyaml reads them, or left to it") {
  std::mt19937 random(8);
  std::size_t taken = 0;
  const unsigned rounds = test::fuzz_rounds(50'000);
  for (unsigned seed = 0; seed < rounds; ++seed) {
    CAPTURE(seed);
    std::string text;
    for (unsigned left = 1 + random() % 16; left > 0; --left) {
      text += letters[random() % letters.size()];
    }
    taken += check_equal(random() % 2 == 0 ? "a: " + text : text) ? 1 : 0;
  }
  CHECK(taken > rounds / 100);
}

TEST_CASE("plain yaml: past a limit libyaml decides what is said") {
  Diagnostics faults;
  const std::string deep = std::string(101, '[') + std::string(101, ']');
  CHECK(!spec::read_plain_yaml(test::source(deep), faults));
  CHECK(spec::read_plain_yaml(test::source(deep.substr(1, 200)), faults));
  CHECK(test::errors_of([&] {
          spec::read_yaml(test::source(deep), faults);
        }).starts_with("t.yaml:1:101: error: lists and maps are nested deeper than 100\n"));
}

}  // namespace shardfit
