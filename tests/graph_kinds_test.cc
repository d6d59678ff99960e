// Every kind of a graph's operators: shapes, flops, bytes forward and backward, what it keeps.
#include <doctest/doctest.h>

#include <map>

#include "model_support.h"
#include "program/training.h"
#include "spec/graph_spec.h"
#include "support.h"

namespace shardfit {
namespace {

using program::Lowering;
using program::TrainingJob;

/// An operator of a kind between a convolution or a linear layer (so that it has a gradient) and
/// the loss.
struct Example {
  std::string from = "picture";  // picture: (b, 8, 6, 6), rows: (b, 5, 8), ids, or two of them
  std::string fields;
  std::vector<std::int64_t> shape;  // of the result, behind the batch
  double flops = 0;                 // forward, a sample
  std::int64_t saved = 0;           // fp32, a sample: what no other operator keeps
  std::int64_t fixed = 0;           // and whatever the batch is
};

constexpr std::int64_t picture = 8 * 6 * 6;
constexpr std::int64_t rows = 5 * 8;

/// One for every kind but the losses; bytes are those of fp32. `picture` and `rows` are kept by
/// what reads them next, their makers keep their own inputs; the sums at the end keep nothing.
std::map<std::string, Example> examples() {
  const std::vector<std::int64_t> same{8, 6, 6};
  const std::vector<std::int64_t> text{5, 8};
  std::map<std::string, Example> e;
  e["linear"] = {"rows", ", outputs: 7", {5, 7}, 2.0 * 5 * 8 * 7, 4 * rows};
  e["embedding"] = {"ids", ", count: 11, width: 8", {5, 8}, 0, 8 * 5};
  e["positions"] = {"rows", ", count: 9", text};
  e["convolution"] = {"picture",
                      ", channels: 4, kernel: 3, padding: 1",
                      {4, 6, 6},
                      2.0 * 4 * 36 * 8 * 9,
                      4 * picture};
  e["convolution1d"] = {"rows", ", channels: 4, kernel: 3", {4, 6}, 2.0 * 4 * 6 * 5 * 3, 4 * rows};
  e["batch_norm"] = {"picture", "", same, 0, 4 * picture, 2 * 8 * 4};
  e["group_norm"] = {"picture", ", groups: 2", same, 0, 4 * picture + 2 * 2 * 4};
  e["layer_norm"] = {"rows", "", text, 0, 4 * rows + 2 * 5 * 4};
  e["rms_norm"] = {"rows", "", text, 0, 4 * rows + 5 * 4};
  for (const char* kind :
       {"relu", "silu", "gelu", "tanh", "sigmoid", "exp", "log", "sqrt", "abs", "softplus"}) {
    e[kind] = {"picture", "", same, 0, 4 * picture};
  }
  e["power"] = {"picture", ", exponent: 3", same, 0, 4 * picture};
  e["softmax"] = {"rows", "", text, 0, 4 * rows};
  e["dropout"] = {"picture", ", rate: 0.5", same, 0, picture};
  e["max_pool"] = {"picture", ", kernel: 2", {8, 3, 3}, 0, 4 * picture + 8 * 8 * 9};
  e["average_pool"] = {"picture", ", kernel: 3, stride: 1", {8, 4, 4}, 0, 4 * picture};
  e["adaptive_average_pool"] = {"picture", ", size: 2", {8, 2, 2}, 0, 4 * picture};
  e["upsample"] = {"picture", ", factor: 2", {8, 12, 12}};
  e["flatten"] = {"picture", "", {picture}};
  e["reshape"] = {"picture", ", shape: [16, -1]", {16, 18}};
  e["transpose"] = {"picture", ", first: 1, second: -1", {6, 6, 8}};
  e["permute"] = {"picture", ", order: [0, 2, 3, 1]", {6, 6, 8}};
  e["contiguous"] = {"picture", "", same};
  e["slice"] = {"picture", ", dimension: 1, start: 2, end: 5", {3, 6, 6}};
  e["select"] = {"picture", ", dimension: 1, place: 0", {6, 6}};
  e["unsqueeze"] = {"rows", ", dimension: 1", {1, 5, 8}};
  e["squeeze"] = {"rows", ", dimension: 1", text};
  e["cast"] = {"picture", ", dtype: bf16", same};
  e["mean"] = {"picture", ", dimension: [2, 3]", {8}};
  e["sum"] = {"picture", ", dimension: 1", {6, 6}};
  e["scale"] = {"picture", ", by: 0.5", same};
  e["shift"] = {"picture", ", by: 1", same};
  e["add"] = {"picture, picture", "", same};
  e["subtract"] = {"picture, picture", "", same};
  e["multiply"] = {"picture, other", "", same, 0, 2 * 4 * picture};
  e["divide"] = {"picture, other", "", same, 0, 2 * 4 * picture};
  e["concat"] = {"picture, other", "", {16, 6, 6}};
  e["stack"] = {"picture, other", ", dimension: 1", {2, 8, 6, 6}};
  e["matmul"] = {"picture, other", "", same, 2.0 * 8 * 6 * 6 * 6, 2 * 4 * picture};
  // Four layers, 2 products of 5 x 5 scores a head; q, k, v, the result, a number a row (of 32) and
  // head; what three of its layers read counts with its maker.
  e["attention"] = {"rows", ", heads: 2", text, 4 * 2.0 * 5 * 8 * 8 + 2 * 2.0 * 5 * 5 * 8,
                    4 * 4 * rows + 2 * 32 * 4};
  return e;
}

constexpr const char* head =
    "graph: one\n"
    "inputs:\n"
    "  x: {shape: [batch, 3, 6, 6]}\n"
    "  words: {shape: [batch, 5, 4]}\n"
    "  ids: {shape: [batch, 5], dtype: int64}\n"
    "operators:\n"
    "  picture: {kind: convolution, from: x, channels: 8, kernel: 1}\n"
    "  other: {kind: convolution, from: x, channels: 8, kernel: 1}\n"
    "  rows: {kind: linear, from: words, outputs: 8}\n"
    "  all1: {kind: sum, from: picture}\n"
    "  all2: {kind: sum, from: other}\n"
    "  all3: {kind: sum, from: rows}\n";

graph::ModelGraph graph_of(const std::string& kind, const Example& example, std::int64_t batch) {
  const test::TemporaryFile file(
      head + ("  it: {kind: " + kind) + ", from: [" + example.from + "]" + example.fields +
      "}\n  all4: {kind: sum, from: it}\n"
      "  loss: {kind: add, from: [all1, all2, all3, all4]}\nloss: loss\n");
  TrainingJob job;
  job.parameters = DType::f32;
  job.micro_batch = batch;
  return Lowering(spec::read_model(file.path), "plain-pytorch").graph(job);
}

std::int64_t saved_by(const graph::ModelGraph& graph, const std::string& layer) {
  const graph::Layer* found = graph.find_layer(layer);
  return found ? found->saved_bytes : 0;
}

std::int64_t saved_bytes(const graph::ModelGraph& graph) {
  // The example's own, and what a child of it (attention's layers) keeps.
  std::int64_t bytes = 0;
  for (const graph::Layer& layer : graph.layers) {
    if (layer.name == "it" || layer.name.starts_with("it.")) bytes += layer.saved_bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("every kind of a graph's operators: shape, flops, bytes and what it keeps") {
  std::map<std::string, Example> known = examples();
  const spec::FamilySpec kinds = spec::read_graph_kinds();
  std::size_t tested = 0;
  for (const spec::ClassSpec& kind : kinds.classes) {
    const std::string name = spec::kind_name(kind);
    if (name.empty()) continue;
    CAPTURE(name);
    CHECK(kind.summary != "");
    CHECK(kind.saves != "");
    CHECK(kind.source != "");
    if (name.ends_with("entropy") || name == "mean_squared_error") continue;
    REQUIRE(known.count(name) == 1);
    const Example& example = known[name];
    for (const std::int64_t batch : {1, 3}) {
      CAPTURE(batch);
      const graph::ModelGraph graph = graph_of(name, example, batch);
      const graph::Operator* last = nullptr;
      graph::Work forward, backward;
      for (const graph::Operator& op : graph.operators) {
        const std::string& module = graph.modules[op.module];
        if (module != "it" && !module.starts_with("it.")) continue;
        last = &op;
        forward.flops += op.forward.flops;
        forward.bytes += op.forward.bytes;
        backward.flops += op.backward.flops;
        backward.bytes += op.backward.bytes;
      }
      if (last) {  // contiguous of what is in order does nothing
        const tensor::Shape& shape = graph.tensors[graph.outputs_of(*last).front()].shape;
        REQUIRE(shape.rank == static_cast<int>(example.shape.size()) + 1);
        CHECK(shape[0] == batch);
        for (std::size_t i = 0; i < example.shape.size(); ++i) {
          CHECK(shape[static_cast<int>(i) + 1] == example.shape[i]);
        }
      }
      const auto samples = static_cast<double>(batch);
      CHECK(forward.flops == samples * example.flops);
      if (example.flops > 0) {  // two products for each of the forward's, attention two and a half
        CHECK(backward.flops >= 2 * forward.flops);
        CHECK(backward.flops <= 2.5 * forward.flops);
      } else {
        CHECK(backward.flops == 0);
      }
      const bool view = kind.saves == "nothing" && forward.bytes == 0;
      if (!view) CHECK(forward.bytes >= samples * 4 * 8);
      CHECK(saved_bytes(graph) == batch * example.saved + example.fixed);
      if (kind.saves == "nothing") CHECK(saved_bytes(graph) == 0);
    }
    ++tested;
  }
  CHECK(tested == known.size());
}

TEST_CASE("in place: the result alone is kept, the input's memory is the result's") {
  Example example = examples()["relu"];
  const graph::ModelGraph apart = graph_of("relu", example, 2);
  CHECK(saved_by(apart, "it") == 2 * 4 * picture);
  const test::TemporaryFile file(
      "graph: t\ninputs: {x: {shape: [batch, 8]}}\noperators:\n"
      "  y: {kind: linear, from: x, outputs: 8}\n  z: {kind: relu, from: y, in_place: true}\n"
      "  loss: {kind: mean, from: z}\nloss: loss\n");
  TrainingJob job;
  job.parameters = DType::f32;
  job.micro_batch = 4;
  const graph::ModelGraph graph = Lowering(spec::read_model(file.path), "plain-pytorch").graph(job);
  CHECK(saved_by(graph, "z") == 4 * 8 * 4);
  std::uint32_t made = 0;
  for (const graph::Operator& op : graph.operators) {
    const std::uint32_t storage = graph.tensors[graph.outputs_of(op).front()].storage;
    if (op.kind == std::string("addmm")) made = storage;
    if (op.kind == std::string("relu")) CHECK(storage == made);
  }
}

}  // namespace shardfit
