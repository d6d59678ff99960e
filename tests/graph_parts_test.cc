// A person's graph put together from its operators is the one that running all of it gives.
#include <doctest/doctest.h>

#include <random>
#include <unordered_map>

#include "graph/network_graph.h"
#include "model_support.h"
#include "program/training.h"
#include "support.h"

namespace shardfit {
namespace {

using graph::ModelGraph;
using graph::NetworkGraph;
using program::Lowering;
using program::TrainingJob;

bool equal(const graph::Work& a, const graph::Work& b) {
  return a.flops == b.flops && a.bytes == b.bytes;
}

std::string difference(const graph::Layer& a, const graph::Layer& b) {
  const bool same = a.name == b.name && a.parameters == b.parameters &&
                    a.parameter_bytes == b.parameter_bytes && a.saved_bytes == b.saved_bytes &&
                    a.weight_copy_bytes == b.weight_copy_bytes && a.operators == b.operators &&
                    equal(a.forward, b.forward) && equal(a.backward, b.backward);
  return same ? "" : "layer " + a.name;
}

std::string layers_difference(const ModelGraph& a, const ModelGraph& b) {
  if (a.layers.size() != b.layers.size()) return "layers";
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    if (std::string d = difference(a.layers[i], b.layers[i]); !d.empty()) return d;
  }
  return difference(a.total, b.total);
}

/// Everything, storages by what shares them.
std::string difference(const ModelGraph& a, const ModelGraph& b) {
  if (a.modules != b.modules) return "modules";
  if (a.operators.size() != b.operators.size()) return "number of operators";
  for (std::size_t i = 0; i < a.operators.size(); ++i) {
    const graph::Operator& x = a.operators[i];
    const graph::Operator& y = b.operators[i];
    const bool same = std::string(x.kind) == y.kind && x.module == y.module && x.layer == y.layer &&
                      x.view == y.view && x.first_link == y.first_link && x.inputs == y.inputs &&
                      x.outputs == y.outputs && equal(x.forward, y.forward) &&
                      equal(x.backward, y.backward) && x.saved_bytes == y.saved_bytes &&
                      x.weight_copy_bytes == y.weight_copy_bytes;
    if (!same) return "operator " + std::to_string(i) + " of " + a.modules[x.module];
  }
  if (a.links != b.links) return "links";
  if (a.tensors.size() != b.tensors.size()) return "number of tensors";
  std::unordered_map<std::uint32_t, std::uint32_t> names, back;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const graph::TensorEdge& x = a.tensors[i];
    const graph::TensorEdge& y = b.tensors[i];
    const bool same = x.name == y.name && x.shape == y.shape && x.dtype == y.dtype &&
                      x.producer == y.producer && x.parameter == y.parameter &&
                      names.emplace(x.storage, y.storage).first->second == y.storage &&
                      back.emplace(y.storage, x.storage).first->second == x.storage;
    if (!same) return "tensor " + std::to_string(i);
  }
  return layers_difference(a, b);
}

/// Whether it was put together.
bool check(const std::string& text, TrainingJob job) {
  CAPTURE(text);
  const test::TemporaryFile file(text);
  const Lowering lowering(spec::read_model(file.path), "plain-pytorch");
  job.copy_blocks = false;
  ModelGraph whole;
  const std::string refused = test::errors_of([&] { whole = lowering.graph(job); });
  job.copy_blocks = true;
  if (!refused.empty()) {
    CHECK(test::errors_of([&] { lowering.graph(job); }) == refused);
    CHECK(test::errors_of([&] { lowering.graph(job, graph::Detail::layers); }) == refused);
    return false;
  }
  const std::int64_t before = NetworkGraph::counts().operators;
  const ModelGraph parts = lowering.graph(job);
  const bool in_parts = NetworkGraph::counts().operators > before;
  CHECK(difference(parts, whole) == "");
  CHECK(layers_difference(lowering.graph(job, graph::Detail::layers), whole) == "");
  return in_parts;
}

/// Writes graphs at random: of sequences and of pictures, with views, writing in place, operators
/// that give back what they get, values that many read, outputs besides the loss, loops.
class Writer {
 public:
  explicit Writer(unsigned seed) : random_(seed) {}

  std::string graph() {
    const bool pictures = chance(4);
    values_ = {{"x", pictures ? Sizes{3, 8, 8} : Sizes{8, 16}},
               {"y", pictures ? Sizes{3, 8, 8} : Sizes{8, 16}}};
    add("first", pictures ? "convolution" : "linear", "x",
        pictures ? "channels: 4, kernel: 3, padding: 1" : "outputs: 16",
        pictures ? Sizes{4, 8, 8} : Sizes{8, 16});
    const int count = 1 + below(chance(3) ? 60 : 15);
    for (int i = 0; i < count; ++i) one();
    return "graph: random\ninputs:\n  x: {shape: " + shape(values_[0].sizes) +
           "}\n  y: {shape: " + shape(values_[1].sizes) + "}\noperators:\n" + end();
  }

 private:
  using Sizes = std::vector<int>;
  struct Written {
    std::string name;
    Sizes sizes;  // behind the batch
    bool read = false, gone = false;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool chance(int n) { return below(n) == 0; }
  static std::string list(const Sizes& sizes) {
    std::string text;
    for (const int size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return text;
  }
  static std::string shape(const Sizes& sizes) { return "[batch, " + list(sizes) + "]"; }

  void add(const std::string& name, const std::string& kind, const std::string& from,
           const std::string& fields, const Sizes& sizes) {
    text_ += "  " + name + ": {kind: " + kind + ", from: " + from +
             (fields.empty() ? "" : ", " + fields) + "}\n";
    values_.push_back({name, sizes});
  }
  void add(const std::string& kind, std::vector<std::size_t> from, const std::string& fields,
           const Sizes& sizes) {
    std::string names;
    for (const std::size_t i : from) {
      values_[i].read = true;
      names += (names.empty() ? "" : ", ") + values_[i].name;
    }
    add("o" + std::to_string(values_.size()), kind, "[" + names + "]", fields, sizes);
  }
  /// A value, rather a late one; with `sizes`, of these.
  std::optional<std::size_t> pick(const Sizes* sizes = nullptr) {
    for (int tries = 0; tries < 20; ++tries) {
      const auto all = static_cast<int>(values_.size());
      const int at = chance(3) ? below(all) : all - 1 - below(std::min(3, all));
      const Written& value = values_[static_cast<std::size_t>(at)];
      if (value.gone || (sizes && value.sizes != *sizes)) continue;
      return static_cast<std::size_t>(at);
    }
    return {};
  }

  void one() {
    const auto picked = pick();
    if (!picked) return;
    const std::size_t from = *picked;
    const Sizes sizes = values_[from].sizes;
    switch (below(6)) {
      case 0:
        return alone(from, sizes);
      case 1:
        return join(from, sizes);
      case 2:
        return view(from, sizes);
      case 3:
        return chance(3) ? loop(from, sizes) : write_over(from, sizes);
      case 4:
        return sizes.size() == 3 ? of_pictures(from, sizes) : of_rows(from, sizes);
      default:
        return alone(from, sizes);
    }
  }
  void alone(std::size_t from, const Sizes& sizes) {
    static const std::vector<std::pair<const char*, const char*>> kinds = {
        {"relu", ""},
        {"silu", ""},
        {"gelu", ""},
        {"tanh", ""},
        {"sigmoid", ""},
        {"exp", ""},
        {"log", ""},
        {"sqrt", ""},
        {"abs", ""},
        {"softplus", ""},
        {"power", "exponent: 3"},
        {"power", "exponent: 1"},
        {"softmax", ""},
        {"dropout", "rate: 0.1"},
        {"dropout", "rate: 0"},
        {"scale", "by: 0.5"},
        {"shift", "by: 1"},
        {"cast", "dtype: fp32"},
        {"cast", "dtype: bf16"},
        {"contiguous", ""},
        {"layer_norm", ""},
        {"rms_norm", ""},
        {"linear", "outputs: 8"},
        {"linear", "outputs: 16"}};
    const auto& [kind, fields] =
        kinds[static_cast<std::size_t>(below(static_cast<int>(kinds.size())))];
    Sizes result = sizes;
    if (std::string(kind) == "linear") result.back() = std::string(fields) == "outputs: 8" ? 8 : 16;
    add(kind, {from}, fields, result);
  }
  void join(std::size_t from, const Sizes& sizes) {
    static const std::vector<std::string> kinds = {"add",    "multiply", "subtract",
                                                   "divide", "concat",   "stack"};
    const std::string& kind = kinds[static_cast<std::size_t>(below(6))];
    std::vector<std::size_t> all = {from};
    const bool more = kind == "add" || kind == "multiply";
    do {
      all.push_back(pick(&sizes).value_or(from));
    } while (more && chance(2));
    Sizes result = sizes;
    if (kind == "concat") result.front() *= 2;
    if (kind == "stack") result.insert(result.begin(), 2);
    if (result.size() > 3 || result.front() > 32) return;
    add(kind, all, kind == "stack" ? "dimension: 1" : "", result);
  }
  void view(std::size_t from, const Sizes& sizes) {
    Sizes result = sizes;
    switch (below(6)) {
      case 0:
        std::swap(result[0], result[1]);
        return add("transpose", {from}, "first: 1, second: 2", result);
      case 1:
        if (sizes.front() < 2) return;
        result.front() /= 2;
        return add("slice", {from},
                   "dimension: 1, start: 0, end: " + std::to_string(result.front()), result);
      case 2:
        return add("reshape", {from}, "shape: [" + list(sizes) + "]", result);
      case 3: {
        int all = 1;
        for (const int size : sizes) all *= size;
        add("flatten", {from}, "", {all});
        add("reshape", {values_.size() - 1}, "shape: [" + list(sizes) + "]", result);
        return take_back();
      }
      case 4:
        add("unsqueeze", {from}, "dimension: 1", {});
        add("squeeze", {values_.size() - 1}, "dimension: 1", result);
        return take_back();
      default:
        if (sizes.size() < 3) return;
        result.erase(result.begin());
        return add("select", {from}, "dimension: 1, place: 0", result);
    }
  }
  /// The value before the last has been read for good.
  void take_back() { values_[values_.size() - 2].gone = true; }
  void write_over(std::size_t from, const Sizes& sizes) {
    if (values_[from].read || from < 2) return;
    add(chance(2) ? "relu" : "silu", {from}, "in_place: true", sizes);
    values_[from].gone = true;
  }
  void of_rows(std::size_t from, const Sizes& sizes) {
    if (sizes.size() != 2) return;
    if (chance(3)) return add("positions", {from}, "count: 64", sizes);
    if (chance(3)) {
      const Sizes other = {sizes[1], sizes[0]};
      if (const auto b = pick(&other)) add("matmul", {from, *b}, "", {sizes[0], sizes[0]});
      return;
    }
    const auto memory = chance(2) ? pick(&sizes) : std::nullopt;
    const std::string fields = chance(2) ? "heads: 2" : "heads: 4, causal: true, dropout: 0.1";
    if (memory) return add("attention", {from, *memory}, fields, sizes);
    add("attention", {from}, fields, sizes);
  }
  void of_pictures(std::size_t from, const Sizes& sizes) {
    Sizes result = sizes;
    switch (below(5)) {
      case 0:
        result[0] = 4;
        return add("convolution", {from}, "channels: 4, kernel: 3, padding: 1", result);
      case 1:
        return add("batch_norm", {from}, "", sizes);
      case 2:
        return sizes[0] % 2 == 0 ? add("group_norm", {from}, "groups: 2", sizes) : void();
      case 3:
        if (sizes[1] % 2 != 0 || sizes[2] % 2 != 0) return;
        result[1] /= 2, result[2] /= 2;
        return add(chance(2) ? "max_pool" : "average_pool", {from}, "kernel: 2", result);
      default:
        if (sizes[1] > 16 || sizes[2] > 16) return;
        result[1] *= 2, result[2] *= 2;
        return add("upsample", {from}, "factor: 2", result);
    }
  }
  /// Passes of a few operators, with a skip around them and something from outside.
  void loop(std::size_t from, const Sizes& sizes) {
    const std::string name = "o" + std::to_string(values_.size());
    const std::string width = std::to_string(sizes.back());
    const std::size_t outside = pick(&sizes).value_or(from);
    values_[from].read = values_[outside].read = true;
    const std::string wide = chance(2) ? "8 * (pass + 1)" : "24";
    text_ +=
        "  " + name + ":\n    repeat: " + std::to_string(1 + below(4)) +
        "\n    from: " + values_[from].name +
        "\n    operators:\n      a: {kind: layer_norm, from: " + name +
        "}\n      b: {kind: linear, from: a, outputs: " + wide +
        "}\n      c: {kind: gelu, from: b}\n      d: {kind: linear, from: c, outputs: " + width +
        "}\n      e: {kind: add, from: [" + name + ", d, " + values_[outside].name +
        "]}\n    result: e\n";
    values_.push_back({name, sizes});
  }
  /// All that nothing has read goes into the loss, or out.
  std::string end() {
    std::string sum, outputs;
    for (const Written& value : values_) {
      if (value.read || value.gone || value.name == "x") continue;
      if (value.name != "y" && chance(6) && !sum.empty()) {
        outputs += (outputs.empty() ? "" : ", ") + value.name;
        continue;
      }
      const std::string mean = "mean_" + value.name;
      text_ += "  " + mean + ": {kind: mean, from: " + value.name + "}\n";
      sum += (sum.empty() ? "" : ", ") + mean;
    }
    text_ += "  loss: {kind: add, from: [" + sum + ", " + sum + "]}\n";
    return text_ + "loss: loss\n" + (outputs.empty() ? "" : "outputs: [" + outputs + "]\n");
  }

  std::mt19937 random_;
  std::vector<Written> values_;
  std::string text_;
};

}  // namespace

TEST_CASE("graphs at random: put together from operators they are what running all gives") {
  const unsigned seeds = test::fuzz_rounds(150);
  int read = 0, in_parts = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    TrainingJob job;
    job.micro_batch = 2 + seed % 3;
    job.sequence = 16;
    job.parameters = seed % 4 == 0 ? DType::bf16 : DType::f32;
    if (seed % 4 > 1) job.autocast = seed % 8 > 3 ? DType::bf16 : DType::f16;
    try {
      in_parts += check(Writer(seed).graph(), job);
      ++read;
    } catch (const InputError&) {
      continue;  // writes over what is needed, for one
    }
  }
  MESSAGE(in_parts, " of ", read, " put together, ", seeds, " written");
  CHECK(read > static_cast<int>(seeds) / 2);
  CHECK(in_parts > read * 3 / 4);
}

TEST_CASE("a graph of many equal operators runs a few of them") {
  std::string operators, last = "first";
  for (int i = 0; i < 500; ++i) {
    const std::string b = "b" + std::to_string(i);
    operators += "  " + b + "_norm: {kind: layer_norm, from: " + last + "}\n  " + b +
                 "_attend: {kind: attention, from: " + b + "_norm, heads: 4}\n  " + b +
                 "_sum: {kind: add, from: [" + last + ", " + b + "_attend]}\n";
    last = b + "_sum";
  }
  const std::string text =
      "graph: deep\ninputs:\n  x: {shape: [batch, 4, 16]}\n  y: {shape: [batch, 4], dtype: "
      "int64}\noperators:\n  first: {kind: linear, from: x, outputs: 16}\n" +
      operators + "  logits: {kind: linear, from: " + last +
      ", outputs: 10}\n  loss: {kind: cross_entropy, from: [logits, y]}\nloss: loss\n";
  TrainingJob job;
  job.parameters = DType::f32;
  job.autocast = DType::bf16;
  const NetworkGraph::Counts before = NetworkGraph::counts();
  CHECK(check(text, job));
  const NetworkGraph::Counts after = NetworkGraph::counts();
  CHECK(after.operators - before.operators == 2 * 1503);
  CHECK(after.run - before.run < 2 * 12);
}

TEST_CASE("what writes over a tensor that has two names is run as a whole") {
  const std::string text =
      "graph: twice\ninputs:\n  x: {shape: [batch, 8]}\noperators:\n  a: {kind: linear, from: x, "
      "outputs: 8}\n  same: {kind: dropout, from: a, rate: 0}\n  over: {kind: relu, from: same, "
      "in_place: true}\n  sum: {kind: add, from: [a, over]}\n  loss: {kind: mean, from: "
      "sum}\nloss: loss\n";
  CHECK_FALSE(check(text, {}));
}

}  // namespace shardfit
