// Saved bytes of published.yaml, and what the graph of a model must hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/format.h"
#include "graph/operator_kinds.h"
#include "model_support.h"
#include "support.h"

namespace shardfit {
namespace {

using graph::Layer;
using graph::ModelGraph;
using program::Lowering;
using program::TrainingJob;
using test::number_of;
using test::text_of;

constexpr std::int64_t sequence = 256;

TrainingJob job_of(const spec::Node& row) {
  TrainingJob job;
  job.sequence = sequence;
  const std::string precision = text_of(row, "precision");
  if (precision == "bf16-mixed") job.autocast = DType::bf16;
  job.parameters = precision == "bf16" ? DType::bf16 : DType::f32;
  if (text_of(row, "attention") == "eager") job.attention = "eager";
  if (text_of(row, "frozen") == "true") {
    job.lora.emplace();  // everything frozen but the embedding, so that the layers' input has a
                         // gradient
    job.lora->modules_to_save = {"embed_tokens"};
    job.lora->fp32_adapters = false;
  }
  return job;
}

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> out;
  std::istringstream in(words);
  for (std::string word; std::getline(in, word, ',');) out.push_back(word);
  return out;
}

}  // namespace

TEST_CASE("one layer saves the published bytes a token") {
  const spec::Node published = test::published();
  std::size_t rows = 0;
  for (const spec::Node& row : published.child("saved_bytes")->children) {
    CAPTURE(text_of(row, "name"));
    const std::string name = text_of(row, "model");
    spec::ModelSpec model = row.child("layer") ? spec::read_model(name) : test::model_named(name);
    const bool gpt2 = model.model_type == "gpt2";
    const bool t5 = model.model_type == "t5";
    test::set_number(model, gpt2 ? "n_layer" : t5 ? "num_layers" : "num_hidden_layers", 3);
    if (const spec::Node* overrides = row.child("override")) {
      for (const spec::Node& one : overrides->children) spec::override_number(model, one.key, one);
    }
    const Lowering lowering(model, "plain-pytorch", split(text_of(row, "implementation")));
    TrainingJob job = job_of(row);
    if (row.child("head")) job.head = text_of(row, "head");
    const ModelGraph graph = lowering.graph(job);
    std::string wanted = gpt2 ? "transformer.h.1" : "model.layers.1";
    if (row.child("layer")) wanted = text_of(row, "layer");
    const Layer* layer = graph.find_layer(wanted);
    REQUIRE(layer);
    const std::int64_t tokens = row.child("tokens") ? number_of(row, "tokens") : sequence;
    CHECK(layer->activation_bytes() ==
          number_of(row, "bytes_per_token") * tokens + number_of(row, "layer_bytes"));
    CHECK(layer->weight_copy_bytes == number_of(row, "weight_copy_bytes"));
    ++rows;
  }
  CHECK(rows >= 17);
}

TEST_CASE("the loss holds 12 or 14 bytes a token and class at the peak of backward") {
  const spec::Node published = test::published();
  for (const spec::Node& row : published.child("loss_bytes")->children) {
    CAPTURE(text_of(row, "name"));
    spec::ModelSpec model = test::model_named("llama-3-8b");
    test::set_number(model, "num_hidden_layers", 1);
    TrainingJob job;
    job.program = text_of(row, "program");
    job.sequence = sequence;
    job.steps = 1;
    const Program program = Lowering(model, "plain-pytorch").lower(job);
    const std::int64_t classes = sequence * 128256;
    std::int64_t live = 0;
    std::int64_t peak = 0;
    bool backward = false;
    for (const Instruction& i : program.instructions) {
      if (i.action == Action::phase) {
        const std::string& done = program.phases[i.id].name;
        backward = done == "forward" || done == "live_after_forward";
      }
      if (i.action != Action::allocate && i.action != Action::release) continue;
      const std::int64_t bytes = program.storages[i.id].bytes;
      if (bytes != 2 * classes && bytes != 4 * classes) continue;
      live += i.action == Action::allocate ? bytes : -bytes;
      if (backward) peak = std::max(peak, live);
    }
    CHECK(peak == number_of(row, "bytes_per_token_and_class") * classes);
  }
}

TEST_CASE("the layers' numbers sum to the total, and the parameters are the published ones") {
  const spec::ModelSpec model = test::model_named("llama-3-8b");
  const Lowering lowering(model, "plain-pytorch");
  TrainingJob job;
  job.sequence = 64;
  const ModelGraph graph = lowering.graph(job);
  Layer sum;
  for (const Layer& layer : graph.layers) {
    sum.parameters += layer.parameters;
    sum.parameter_bytes += layer.parameter_bytes;
    sum.saved_bytes += layer.saved_bytes;
    sum.operators += layer.operators;
    sum.forward.flops += layer.forward.flops;
    sum.backward.flops += layer.backward.flops;
  }
  CHECK(sum.parameters == graph.total.parameters);
  CHECK(sum.parameters == *model.expected_parameters);
  CHECK(sum.parameters == 8030261248);
  CHECK(sum.parameter_bytes == 2 * sum.parameters);
  CHECK(sum.saved_bytes == graph.total.saved_bytes);
  CHECK(sum.operators == static_cast<std::int64_t>(graph.operators.size()));
  CHECK(sum.forward.flops == graph.total.forward.flops);
  std::int64_t saved = 0;
  for (const graph::Operator& op : graph.operators) saved += op.saved_bytes;
  CHECK(saved == graph.total.saved_bytes);
  // Every matrix parameter but the embedding takes part in one product: 2 flops a token forward,
  // twice that backward; attention adds 4 S h a token and layer forward, halved by the causal mask.
  const double matrices = 8030261248.0 - 128256.0 * 4096 - 65 * 4096;
  const double attention = 32.0 * 2 * 64 * 4096;
  CHECK(graph.total.forward.flops == 64 * (2 * matrices + attention));
  CHECK(graph.total.backward.flops == 64 * (4 * matrices + 2.5 * attention));
  const auto groups = graph::equal_layers(graph);
  const auto blocks = std::find_if(groups.begin(), groups.end(),
                                   [](const graph::LayerGroup& g) { return g.count == 32; });
  REQUIRE(blocks != groups.end());
  CHECK(graph::group_name(graph, *blocks) == "model.layers.0 .. 31");
}

TEST_CASE("operators stand in a topological order, and Boost finds no cycle") {
  spec::ModelSpec model = test::model_named("llama-3-8b");
  test::set_number(model, "num_hidden_layers", 2);
  const ModelGraph graph = Lowering(model, "plain-pytorch").graph({});
  std::size_t edges = 0;
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    for (const std::uint32_t input : graph.inputs_of(graph.operators[i])) {
      CHECK(graph.tensors[input].producer < static_cast<std::int32_t>(i));
      edges += graph.tensors[input].producer >= 0 ? 1 : 0;
    }
    for (const std::uint32_t output : graph.outputs_of(graph.operators[i])) {
      CHECK(graph.tensors[output].producer == static_cast<std::int32_t>(i));
    }
  }
  CHECK(edges > graph.operators.size() / 2);
  const std::vector<std::uint32_t> order = graph::topological_order(graph);
  CHECK(order.size() == graph.operators.size());
  std::vector<std::size_t> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  for (const graph::Operator& op : graph.operators) {
    for (const std::uint32_t input : graph.inputs_of(op)) {
      const std::int32_t producer = graph.tensors[input].producer;
      if (producer < 0) continue;
      CHECK(place[static_cast<std::size_t>(producer)] <
            place[graph.tensors[graph.outputs_of(op).front()].producer]);
    }
  }
  CHECK(graph::critical_bytes(graph) > 0);
  CHECK(graph::critical_bytes(graph) <= graph.total.forward.bytes);
  std::ostringstream dot;
  graph::write_dot(graph, dot);
  CHECK(dot.str().find("flash_attention") != std::string::npos);
  CHECK(dot.str().rfind("digraph", 0) == 0);
}

TEST_CASE("every operator saves what the table of kinds says") {
  std::set<std::string> seen;
  for (const char* name : {"llama-3-8b", "gpt2"}) {
    spec::ModelSpec model;
    try {
      model = test::model_named(name);
    } catch (const InputError&) {
      continue;  // a family that is not there
    }
    test::set_number(model, "num_hidden_layers", 2);
    test::set_number(model, "n_layer", 2);
    for (const char* attention : {"sdpa", "eager"}) {
      TrainingJob job;
      job.sequence = 32;
      job.attention = attention;
      const ModelGraph graph = Lowering(model, "plain-pytorch").graph(job);
      for (const graph::Operator& op : graph.operators) {
        CAPTURE(op.kind);
        const graph::OperatorKind* kind = graph::find_operator_kind(op.kind);
        REQUIRE(kind);
        seen.insert(op.kind);
        if (op.view) CHECK(kind->saves == graph::Saves::nothing);
      }
    }
  }
  CHECK(seen.size() > 20);
}

}  // namespace shardfit
