// Model and family files that are wrong: each gives located errors, none crashes or wraps round.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <vector>

#include "model_support.h"
#include "support.h"

namespace shardfit {
namespace {

namespace fs = std::filesystem;
using test::errors_of;
using test::TemporaryFile;

/// A small Llama with some keys as given.
std::string config(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> keys = {
      {"model_type", "\"llama\""}, {"hidden_size", "64"},        {"intermediate_size", "128"},
      {"num_hidden_layers", "2"},  {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
      {"vocab_size", "100"},
  };
  for (const auto& [key, value] : changes) keys[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : keys) {
    if (!value.empty()) text += (text.size() > 1 ? ",\n" : "\n") + ("\"" + key + "\": " + value);
  }
  return text + "\n}\n";
}

std::string lowering_errors(const std::map<std::string, std::string>& changes) {
  const TemporaryFile file(config(changes), "config.json");
  return errors_of([&] {
    const program::Lowering lowering(spec::read_model(file.path), "plain-pytorch");
    program::TrainingJob job;
    job.sequence = 16;
    lowering.parameter_count();
    lowering.graph(job);
    lowering.lower(job);
  });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A data directory of its own, with the shipped library and one family.
class DataDirectory {
 public:
  explicit DataDirectory(const std::string& family) : folder_("", "none") {
    const fs::path to = fs::path(folder_.path).parent_path();
    const fs::path from = fs::path(SHARDFIT_SOURCE_DIR) / "model_specs";
    fs::create_directories(to / "families");
    for (const char* shared : {"library", "frameworks"}) {
      fs::copy(from / shared, to / shared, fs::copy_options::recursive);
    }
    std::ofstream(to / "families" / "odd.yaml") << family;
    setenv("SHARDFIT_DATA", to.c_str(), 1);
  }
  ~DataDirectory() { unsetenv("SHARDFIT_DATA"); }
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

 private:
  TemporaryFile folder_;
};

/// What a family of these modules complains of; `root` is its causal head.
std::string family_errors(const std::string& modules, std::int64_t layers = 2,
                          const std::string& extra = "") {
  const DataDirectory data("family: odd\nmodel_types: [odd]\ndimensions: {width: , layers: }\n" +
                           extra + "heads: {causal: root}\nmodules:\n" + modules);
  const TemporaryFile file(
      "{\"model_type\": \"odd\", \"width\": 8, \"layers\": " + std::to_string(layers) + "}",
      "config.json");
  return errors_of([&] {
    const program::Lowering lowering(spec::read_model(file.path), "plain-pytorch");
    program::TrainingJob job;
    job.sequence = 4;
    lowering.lower(job);
  });
}

}  // namespace

TEST_CASE("a small model of the right kind works") { CHECK(lowering_errors({}) == ""); }

TEST_CASE("numbers of a model that cannot be are refused with their place") {
  for (const std::string& key : std::vector<std::string>{
           "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers",
           "num_attention_heads", "num_key_value_heads"}) {
    for (const std::string& value : std::vector<std::string>{
             "1e18", "1000000000000000000", "9223372036854775808", "-1", "-4096",
             "99999999999999999999999999", "\"many\"", "1.5", "[1, 2]", "true"}) {
      CAPTURE(key);
      CAPTURE(value);
      const std::string errors = lowering_errors({{key, value}});
      CHECK(contains(errors, "config.json:"));
      CHECK(contains(errors, "error: "));
    }
  }
}

TEST_CASE("sizes of nothing are refused, not divided by") {
  for (const std::string& key :
       std::vector<std::string>{"hidden_size", "num_attention_heads", "num_key_value_heads"}) {
    CAPTURE(key);
    CHECK(contains(lowering_errors({{key, "0"}}), "error: "));
  }
  CHECK(contains(lowering_errors({{"hidden_size", "0"}, {"head_dim", "16"}}), "error: "));
  CHECK(contains(lowering_errors({{"head_dim", "0"}}), "head_dim must be at least 1"));
  // No layers, and no classes of the vocabulary, are odd and yet programs.
  CHECK(lowering_errors({{"num_hidden_layers", "0"}}) == "");
}

TEST_CASE("products that do not fit 63 bits are refused, not wrapped round") {
  const std::string large = std::to_string(std::int64_t{1} << 40);
  for (const auto& changes : std::vector<std::map<std::string, std::string>>{
           {{"vocab_size", large}, {"hidden_size", large}},
           {{"intermediate_size", large}, {"hidden_size", large}},
           {{"vocab_size", large}, {"hidden_size", "4194304"}},
           {{"hidden_size", large}, {"head_dim", large}},
       }) {
    const std::string errors = lowering_errors(changes);
    CAPTURE(errors);
    CHECK(contains(errors, "63 bits"));
    CHECK(contains(errors, ":"));
  }
}

TEST_CASE("a missing number is named") {
  const std::string errors = lowering_errors({{"hidden_size", ""}, {"vocab_size", ""}});
  CHECK(contains(errors, "needs 'hidden_size'"));
  CHECK(contains(errors, "needs 'vocab_size'"));
}

TEST_CASE("more layers than 2,048 are refused before they are built") {
  CHECK(contains(lowering_errors({{"num_hidden_layers", "2049"}}), "expected 0 to 2048 layers"));
}

TEST_CASE("a module that contains itself is an error at its definition") {
  const std::string direct = family_errors(
      "  root:\n    children: {inner: root()}\n    inputs: [ids]\n    forward:\n      - return "
      "ids\n");
  CHECK(contains(direct, "odd.yaml:6:3"));
  CHECK(contains(direct, "'root' contains itself"));
  const std::string around = family_errors(
      "  root:\n    children: {inner: other()}\n    inputs: [ids]\n    forward: [return ids]\n"
      "  other:\n    children: {inner: root()}\n");
  CHECK(contains(around, "contains itself"));
  const std::string calls = family_errors(
      "  root:\n    inputs: [ids]\n    forward: [return ping(ids)]\n"
      "  ping:\n    inputs: [x]\n    forward: [return pong(x)]\n"
      "  pong:\n    inputs: [x]\n    forward: [return ping(x)]\n");
  CHECK(contains(calls, "contains itself"));
}

TEST_CASE("unknown names, functions and arguments are named with what is near") {
  const auto root = [](const std::string& statement) {
    return family_errors("  root:\n    inputs: [ids]\n    forward:\n      - return " + statement +
                         "\n");
  };
  CHECK(contains(root("idz"), "unknown name 'idz'"));
  CHECK(contains(root("idz"), "did you mean 'ids'?"));
  CHECK(contains(root("vieww(ids, [1])"), "did you mean 'view'?"));
  CHECK(contains(root("view(ids)"), "argument 'shape' of 'view' is missing"));
  CHECK(contains(root("view(ids, [1], [2])"), "too many arguments of 'view'"));
  CHECK(contains(root("view(ids, shap = [1])"), "has no argument 'shap'"));
  CHECK(contains(root("view(ids, shape = [1], shape = [2])"), "given twice"));
  CHECK(contains(root("ids + 'text'"), "odd.yaml:9:"));
  CHECK(contains(root("width(ids)"), "odd.yaml:9:"));
  CHECK(contains(root("[1, 2][5]"), "index 5 of 2"));
  CHECK(contains(root("1 // 0"), "division by zero"));
  CHECK(contains(root("range(5000000000)"), "error: "));
  CHECK(contains(root("ids = "), "odd.yaml:9:"));
}

TEST_CASE("operands that do not go together are named with both shapes") {
  const std::string errors = family_errors(
      "  root:\n    children: {table: 'embedding(10, width)', a: 'linear(width + 1, width)'}\n"
      "    inputs: [ids]\n    forward:\n      - return a(table(ids))\n");
  CHECK(contains(errors, "linear: input (1, 4, 8), weight (8, 9)"));
  CHECK(contains(errors, "(in module 'a')"));
  const std::string sum = family_errors(
      "  root:\n    inputs: [ids]\n    forward:\n"
      "      - return empty([3, 4], fp32) + empty([2, 4], fp32)\n");
  CHECK(contains(sum, "add: (3, 4) and (2, 4) do not broadcast"));
}

TEST_CASE("shape functions refuse dimensions that are not there") {
  const auto root = [](const std::string& statement) {
    return family_errors(
        "  root:\n    inputs: [ids]\n    forward:\n      - x = empty([2, 4], fp32)\n"
        "      - return " +
        statement + "\n");
  };
  for (const std::string& statement : std::vector<std::string>{
           "transpose(x, 0, 2)",
           "unsqueeze(x, 5)",
           "squeeze(x, 9)",
           "select(x, 7, 0)",
           "slice(x, 4, 0, 1)",
           "permute(x, [0, 1, 2])",
           "permute(x, [0, 0])",
           "permute(x, [0])",
           "cat([], 0)",
           "cat([x, x], 5)",
           "split(x, [1, 1], 9)",
           "chunk(x, 2, -9)",
           "mean(x, 4)",
           "sum(x, -5)",
           "softmax(x, 3)",
           "norm(x, 2)",
           "expand(x, [4])",
           "view(x, [3, 3])",
           "view(x, [-1, -1, 3])",
           "empty([-1], fp32)",
           "empty([4, -2], fp32)",
           "empty([1, 1, 1, 1, 1, 1, 1], fp32)",
           "scratch(-5)",
           "slice(x, 1, 0, 2, 0)",
           "slice(x, 1, 0, 2, -1)",
           "select(x, 0, 2)",
           "unsqueeze(unsqueeze(unsqueeze(unsqueeze(unsqueeze(x, 0), 0), 0), 0), 0)",
           "bmm(x, x)",
           "addmm(x, x, x)",
           "matmul(x, x)",
           "affine(x, x, x)",
           "normalize(x, x, x)",
           "lookup(x, ids) + lookup(ids, x)",
           "cross_entropy(x, ids)",
           "attention(x, x, x)",
           "split(x, [-1, 5], 1)",
           "chunk(x, 0, 0)",
           "reshape(x, [0, -1])"}) {
    CAPTURE(statement);
    CHECK(contains(root(statement), "odd.yaml:"));
  }
}

TEST_CASE("a program of 10^5 operators runs, forward and back, without exhausting the stack") {
  const std::string errors = family_errors(
      "  step:\n    inputs: [x]\n    forward: [return sin(x)]\n"
      "  layer:\n    children: {table: 'embedding(10, width)'}\n    inputs: [x]\n"
      "    forward: [return sin(cos(x))]\n"
      "  root:\n    children: {table: 'embedding(10, width)'}\n    inputs: [ids, labels]\n"
      "    forward:\n      - x = table(ids)\n      - for: i in range(layers)\n        do:\n"
      "          - x = sin(x)\n      - return mean(x), none\n",
      100000);
  CHECK(errors == "");
}

}  // namespace shardfit
