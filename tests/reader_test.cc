// Texts become trees, and trees checked values.
#include "spec/reader.h"

#include <doctest/doctest.h>

#include "spec/data_directory.h"
#include "spec/formats.h"
#include "spec/model_spec.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::spec;
using test::errors_of;

namespace {

Node parse(const std::string& text, const std::string& name = "t.yaml") {
  return test::parse_node(text, name);
}

/// Faults of reading `text` as a map through `use`.
template <class Use>
std::string faults_of(const std::string& text, Use use, UnknownKeys unknown = UnknownKeys::refused,
                      const std::string& name = "t.yaml") {
  return errors_of([&] {
    Diagnostics faults;
    const Node root = read_text(test::source(text, name), faults);
    MapView map(root, "model", faults, unknown);
    use(map);
    map.finish();
    faults.throw_if_any();
  });
}

}  // namespace

TEST_CASE("YAML and JSON of the same content give the same tree") {
  const Node yaml = parse("a: 1\nb: [x, 2.5, true, null]\nc:\n  d: '7'\n");
  const Node json = parse(R"({"a": 1, "b": ["x", 2.5, true, null], "c": {"d": "7"}})", "t.json");
  for (const Node* root : {&yaml, &json}) {
    REQUIRE(root->kind == Kind::map);
    CHECK(root->child("a")->kind == Kind::integer);
    const Node& list = *root->child("b");
    REQUIRE(list.children.size() == 4);
    CHECK(list.children[0].text == "x");
    CHECK(list.children[1].kind == Kind::real);
    CHECK(list.children[2].kind == Kind::boolean);
    CHECK(list.children[3].kind == Kind::null);
    CHECK(root->child("c")->child("d")->kind == Kind::string);
    CHECK(root->child("e") == nullptr);
  }
}

TEST_CASE("every value and key of a text knows its place") {
  const Node yaml = parse("a: 1\nbb:\n  - \"q\\\"x\"\n  - zz\n");
  CHECK(yaml.child("a")->where.text() == "t.yaml:1:4");
  CHECK(yaml.child("bb")->key_where.text() == "t.yaml:2:1");
  CHECK(yaml.child("bb")->children[0].where.text() == "t.yaml:3:5");
  CHECK(yaml.child("bb")->children[0].where.length == 6);
  CHECK(yaml.child("bb")->children[1].where.text() == "t.yaml:4:5");

  const Node json =
      parse("{\n  \"a\\\\\": \"q\\\"x\",\n  \"b\": [-1.5e3, {\"c\": false}, null]\n}");
  CHECK(json.children[0].key == "a\\");
  CHECK(json.children[0].key_where.text() == "t.yaml:2:3");
  CHECK(json.children[0].text == "q\"x");
  const Node j =
      parse("{\n  \"a\\\\\": \"q\\\"x\",\n  \"b\": [-1.5e3, {\"c\": false}, null]\n}", "t.json");
  CHECK(j.children[0].key == "a\\");
  CHECK(j.children[0].key_where.text() == "t.json:2:3");
  CHECK(j.children[0].where.text() == "t.json:2:10");
  CHECK(j.children[0].where.length == 6);
  CHECK(j.child("b")->where.text() == "t.json:3:8");
  CHECK(j.child("b")->children[0].where.text() == "t.json:3:9");
  CHECK(j.child("b")->children[0].text == "-1.5e3");
  CHECK(j.child("b")->children[1].where.text() == "t.json:3:17");
  CHECK(j.child("b")->children[1].child("c")->where.text() == "t.json:3:23");
  CHECK(j.child("b")->children[2].where.text() == "t.json:3:31");
}

TEST_CASE("a name decides the format, else the first character") {
  CHECK(parse("{a: 1}", "t.yml").child("a")->text == "1");
  CHECK(parse("{\"a\": 1}", "config").child("a")->text == "1");
  CHECK(parse("a: 1", "config").child("a")->text == "1");
  CHECK(errors_of([] { parse("{a: 1}", "t.json"); }).find("t.json:1:2: error: not JSON") == 0);
}

TEST_CASE("byte order mark, CRLF and tabs in JSON are read") {
  test::TemporaryFile file("\xEF\xBB\xBF{\r\n\t\"a\":\t1\r\n}\r\n", "bom.json");
  Diagnostics faults;
  CHECK(read_file(file.path, faults).child("a")->text == "1");
  CHECK(parse("a: 1\r\nb: x\r\n").child("b")->text == "x");
}

TEST_CASE("plain YAML words have the types of YAML 1.2's core schema") {
  CHECK(classify("12") == Kind::integer);
  CHECK(classify("-1e-5") == Kind::real);
  CHECK(classify("1.") == Kind::real);
  CHECK(classify(".5") == Kind::real);
  CHECK(classify(".inf") == Kind::real);
  CHECK(classify("true") == Kind::boolean);
  CHECK(classify("~") == Kind::null);
  for (const char* text : {"yes", "no", "on", "0x10", "0o10", "1_000", "1e", ".", "+", "-", "1.2.3",
                           "2xb200", "1e5x", "nan", "inf"}) {
    CAPTURE(text);
    CHECK(classify(text) == Kind::string);
  }
}

TEST_CASE("required, optional and unknown keys") {
  const auto use = [](MapView& map) {
    map.require_integer("hidden", {1, 1 << 20});
    map.integer("heads");
  };
  CHECK(faults_of("hidden: 8\nheads: 2\n", use) == "");
  CHECK(faults_of("hidden: 8\n", use) == "");
  CHECK(faults_of("heads: 2\n", use) ==
        "t.yaml:1:1: error: model lacks the key 'hidden'\n    heads: 2\n    ^\n");
  CHECK(faults_of("hidden: 8\nhaeds: 2\n", use) ==
        "t.yaml:2:1: error: unknown key 'haeds' in model\n"
        "    haeds: 2\n"
        "    ^~~~~\n"
        "  expected one of: heads, hidden\n"
        "  did you mean 'heads'?\n");
}

TEST_CASE("all faults of a text come at once, in file order") {
  const std::string shown = faults_of("z: 1\nhidden: x\nheads: -1\nheads: 2\n", [](MapView& map) {
    map.integer("heads");
    map.require_integer("hidden");
  });
  const auto at = [&](const char* text) { return shown.find(text); };
  CHECK(at("t.yaml:1:1: error: unknown key 'z'") == 0);
  CHECK(at("t.yaml:2:9: error: 'hidden' of model: expected a whole number of at least 0, found the "
           "text 'x'") < at("t.yaml:3:8: error: 'heads' of model"));
  CHECK(at("t.yaml:4:1: error: duplicate key 'heads'") != std::string::npos);
  CHECK(at("first given at line 3") != std::string::npos);
}

TEST_CASE("an absurd size is refused with its range, never wrapped round") {
  const auto use = [](MapView& map) { map.require_integer("hidden", {1, 1'048'576}); };
  for (const char* text :
       {"1000000000000000000", "1048577", "0", "-5", "99999999999999999999999"}) {
    CAPTURE(text);
    const std::string shown = faults_of(std::string("hidden: ") + text, use);
    CHECK(shown.find(std::string("'hidden' of model: expected a whole number from 1 to 1,048,576, "
                                 "found the number '") +
                     text + "'") != std::string::npos);
  }
  CHECK(faults_of("hidden: 1048576", use) == "");
  CHECK(faults_of("hidden: 1", use) == "");
}

TEST_CASE("a whole number in another dress is refused with the digits to write") {
  const auto use = [](MapView& map) { map.require_integer("n"); };
  CHECK(faults_of("n: 1e6", use).find("write 1000000") != std::string::npos);
  CHECK(faults_of("n: 1_000", use).find("write 1000\n") != std::string::npos);
  CHECK(faults_of("n: 2.0", use).find("write 2\n") != std::string::npos);
  CHECK(faults_of("n: 2.5", use).find("write") == std::string::npos);
  CHECK(faults_of("n: '8'", use).find("found the text '8'") != std::string::npos);
  CHECK(faults_of("n: 010", use).find("'010' looks like an octal number") != std::string::npos);
  CHECK(faults_of("n: true", use).find("found true") != std::string::npos);
  CHECK(faults_of("n: [1]", use).find("found a list") != std::string::npos);
  CHECK(faults_of("n: {}", use).find("found an empty map") != std::string::npos);
  CHECK(faults_of("n:", use).find("it has no value") != std::string::npos);
}

TEST_CASE("real numbers are finite and in range") {
  const auto use = [](MapView& map) { map.require_real("x", {0, 1}); };
  CHECK(faults_of("x: 0.5", use) == "");
  CHECK(faults_of("x: 1", use) == "");
  for (const char* text : {".nan", ".inf", "-.inf", "1e999", "-0.1", "1.1", "01.5", "'0.5'"}) {
    CAPTURE(text);
    CHECK(faults_of(std::string("x: ") + text, use) != "");
  }
  for (const char* text : {"NaN", "Infinity", "-Infinity"}) {
    CAPTURE(text);
    const std::string json = std::string("{\"x\": ") + text + "}";
    CHECK(faults_of(json, use, UnknownKeys::refused, "t.json")
              .find(std::string("found the number '") + text + "'") != std::string::npos);
    CHECK(faults_of(
              json, [](MapView&) {}, UnknownKeys::kept, "t.json") == "");
  }
}

TEST_CASE("booleans, text and choices") {
  const std::vector<std::string> tasks{"full", "lora"};
  CHECK(faults_of("b: yes", [](MapView& m) { m.boolean("b"); }).find("write true") !=
        std::string::npos);
  CHECK(faults_of("b: 0", [](MapView& m) { m.boolean("b"); }).find("write false") !=
        std::string::npos);
  CHECK(faults_of("b: 'true'", [](MapView& m) { m.boolean("b"); }) != "");
  CHECK(faults_of("s: 2.10", [](MapView& m) { m.string("s"); }).find("quotes: '2.10'") !=
        std::string::npos);
  CHECK(faults_of("s: ''", [](MapView& m) { m.string("s"); }).find("is empty") !=
        std::string::npos);
  CHECK(faults_of("s: [a]", [](MapView& m) { m.string("s"); }) != "");
  CHECK(faults_of("t: lora", [&](MapView& m) { CHECK(m.choice("t", tasks)->value == 1); }) == "");
  CHECK(faults_of("t: lorra", [&](MapView& m) {
          m.choice("t", tasks);
        }).find("unknown value 'lorra'") != std::string::npos);
  CHECK(faults_of("t: 1", [&](MapView& m) {
          m.choice("t", tasks);
        }).find("expected one of: full, lora") != std::string::npos);
}

TEST_CASE("quantities need their unit") {
  const auto use = [](MapView& m) { m.bytes("memory"); };
  CHECK(faults_of("memory: 80 GiB", use) == "");
  CHECK(faults_of("memory: 80", use).find("'80' has no unit") != std::string::npos);
  CHECK(faults_of("memory: -1 GiB", use).find("is negative") != std::string::npos);
  CHECK(faults_of("memory: 80 Gb", use).find("unknown unit 'Gb'") != std::string::npos);
  CHECK(faults_of("memory: [80 GiB]", use).find("found a list") != std::string::npos);
  CHECK(faults_of("r: 900 GB/s", [](MapView& m) {
          CHECK(m.bytes_per_second("r")->value.value() == 900e9);
        }) == "");
  CHECK(faults_of("t: 3", [](MapView& m) { m.seconds("t"); }).find("has no unit") !=
        std::string::npos);
}

TEST_CASE("a foreign format keeps unknown keys and takes null as absent, but checks what is used") {
  const std::string json = R"({"model_type": "llama", "head_dim": null, "other": [1, {"x": 2}]})";
  CHECK(faults_of(
            json, [](MapView& m) { CHECK_FALSE(m.integer("head_dim")); }, UnknownKeys::kept,
            "config.json") == "");
  CHECK(faults_of(
            json, [](MapView& m) { m.integer("head_dim"); }, UnknownKeys::refused, "config.json") !=
        "");
  CHECK(faults_of(
            json, [](MapView& m) { m.integer("model_type"); }, UnknownKeys::kept, "config.json")
            .find("config.json:1:16: error: 'model_type' of model") == 0);
  CHECK(faults_of(R"({"a": 1, "a": 2})", [](MapView&) {}, UnknownKeys::kept, "config.json")
            .find("duplicate key 'a'") != std::string::npos);
}

TEST_CASE("a document of the wrong kind is one fault, not one a key") {
  const std::string shown = faults_of("[1, 2]", [](MapView& m) {
    m.require_integer("a");
    m.require_string("b");
  });
  CHECK(shown == "t.yaml:1:1: error: model: expected a map, found a list\n    [1, 2]\n    ^\n");
}

TEST_CASE("entries of a data file are those of the whole file") {
  int read = 0;
  for (const std::string& file : spec::data_files("families")) {
    CAPTURE(file);
    Diagnostics faults;
    const auto whole = spec::read_data(file, faults);
    const auto part = spec::read_data_entries(file, {"family", "framework", "model_types"}, faults);
    CHECK(faults.empty());
    CHECK(part->children.size() < whole->children.size());
    for (const char* key : {"family", "framework", "model_types"}) {
      const spec::Node* of_whole = whole->child(key);
      const spec::Node* of_part = part->child(key);
      REQUIRE((of_whole != nullptr) == (of_part != nullptr));
      if (!of_whole) continue;
      ++read;
      CHECK(of_part->text == of_whole->text);
      REQUIRE(of_part->children.size() == of_whole->children.size());
      for (std::size_t i = 0; i < of_part->children.size(); ++i) {
        CHECK(of_part->children[i].text == of_whole->children[i].text);
      }
    }
  }
  CHECK(read > 100);
  const test::TemporaryFile lists(
      "# one\nmodel_types:\n- a\n- b\n\nother: {family: 3}\nfamily: c\n");
  Diagnostics faults;
  const auto part = spec::read_data_entries(lists.path, {"family", "model_types"}, faults);
  REQUIRE(part->children.size() == 2);
  CHECK(part->child("model_types")->children.size() == 2);
  CHECK(part->child("family")->text == "c");
  const test::TemporaryFile json(R"({"family": "d", "other": 1})");
  CHECK(spec::read_data_entries(json.path, {"family"}, faults)->child("family")->text == "d");
}
