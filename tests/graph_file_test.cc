// Graphs of a person's own: right ones are counted exactly, wrong ones give located errors.
#include <doctest/doctest.h>

#include "exact_readings.h"
#include "model_support.h"
#include "program/training.h"
#include "support.h"

namespace shardfit {
namespace {

using program::Lowering;
using program::TrainingJob;

graph::ModelGraph graph_of(const std::string& text, const std::string& name = "test.yaml") {
  const test::TemporaryFile file(text, name);
  const Lowering lowering(spec::read_model(file.path), "plain-pytorch");
  TrainingJob job;
  job.parameters = DType::f32;
  job.micro_batch = 4;
  job.sequence = 16;
  return lowering.graph(job);
}

/// What a graph is refused for, without the folder of the file.
std::string faults_of(const std::string& text, const std::string& name = "test.yaml") {
  std::string errors = test::errors_of([&] { graph_of(text, name); });
  for (std::size_t at; (at = errors.find("/tmp/")) != std::string::npos;) {
    errors.erase(at, errors.find(name, at) - at);
  }
  return errors;
}

/// A graph of these operators over a picture x and labels, with its loss.
std::string with(const std::string& operators, const std::string& logits = "logits") {
  return "graph: test\n"
         "inputs:\n"
         "  x: {shape: [batch, 3, 8, 8]}\n"
         "  labels: {shape: [batch], dtype: int64}\n"
         "operators:\n" +
         operators + "  loss: {kind: cross_entropy, from: [" + logits + ", labels]}\nloss: loss\n";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string classifier =
    "  flat: {kind: flatten, from: top}\n  logits: {kind: linear, from: flat, outputs: 10}\n";

}  // namespace

TEST_CASE("exact readings: graphs of a person's own are equal to the byte") {
  test::check_exact("graphs.yaml", 9);
  test::check_exact("random_graphs.yaml", 24);
}

TEST_CASE("branches and skips: sizes follow from shapes, parameters are counted") {
  const graph::ModelGraph graph =
      graph_of(with("  a: {kind: convolution, from: x, channels: 6, kernel: 3, padding: 1}\n"
                    "  b: {kind: convolution, from: x, channels: 6, kernel: 1, bias: false}\n"
                    "  sum: {kind: add, from: [a, b]}\n"
                    "  top: {kind: concat, from: [sum, x]}\n" +
                    classifier));
  CHECK(graph.total.parameters == 6 * 3 * 9 + 6 + 6 * 3 + 10 * 9 * 64 + 10);
  CHECK(graph.total.forward.flops == 4.0 * (2 * 64 * 6 * 27 + 2 * 64 * 6 * 3 + 2 * 10 * 9 * 64));
}

TEST_CASE("loops are unrolled: each pass has parameters of its own, sized by what it gets") {
  const std::string loop =
      "  top:\n"
      "    repeat: 3\n"
      "    from: x\n"
      "    operators:\n"
      "      conv: {kind: convolution, from: top, channels: 4 * (pass + 1), kernel: 3, padding: "
      "1}\n"
      "      act: {kind: relu, from: conv}\n"
      "    result: act\n";
  const graph::ModelGraph graph = graph_of(with(loop + classifier));
  CHECK(graph.total.parameters == (3 * 4 + 4 * 8 + 8 * 12) * 9 + 4 + 8 + 12 + 10 * 12 * 64 + 10);
  REQUIRE(graph.find_layer("top.2"));
  CHECK(graph.find_layer("top.2")->parameters == 8 * 12 * 9 + 12);
}

TEST_CASE("operators may stand in any order, and a loop may read what is around it") {
  const std::string before =
      "  top: {kind: add, from: [passes, side]}\n"
      "  passes:\n"
      "    repeat: 2\n"
      "    from: first\n"
      "    operators:\n"
      "      out: {kind: multiply, from: [passes, side]}\n"
      "    result: out\n"
      "  side: {kind: sigmoid, from: first}\n"
      "  first: {kind: convolution, from: x, channels: 5, kernel: 1}\n";
  const graph::ModelGraph graph = graph_of(with(before + classifier));
  CHECK(graph.total.parameters == 5 * 3 + 5 + 10 * 5 * 64 + 10);
  CHECK(graph.operators.front().kind == std::string("convolution"));
}

TEST_CASE("numbers of the graph are used by its expressions and may be overridden") {
  const test::TemporaryFile file(
      "graph: t\nnumbers: {width: 8, wide: 2 * width}\n"
      "inputs: {x: {shape: [batch, width]}}\noperators:\n"
      "  y: {kind: linear, from: x, outputs: wide}\n  loss: {kind: mean, from: y}\nloss: loss\n");
  spec::ModelSpec model = spec::read_model(file.path);
  CHECK(Lowering(model, "plain-pytorch").parameter_count() == 8 * 16 + 16);
  test::set_number(model, "width", 10);
  CHECK(Lowering(model, "plain-pytorch").parameter_count() == 10 * 20 + 20);
}

TEST_CASE(
    "a recomputed pass that writes over its own input: what holds itself goes with its program") {
  const test::TemporaryFile file(
      "graph: t\ninputs: {x: {shape: [batch, 32]}}\noperators:\n"
      "  a: {kind: linear, from: x, outputs: 32}\n"
      "  loop:\n    repeat: 1\n    from: a\n    operators:\n"
      "      d: {kind: dropout, from: loop, rate: 0}\n"
      "      s: {kind: relu, from: d, in_place: true}\n    result: s\n"
      "  loss: {kind: mean, from: loop}\nloss: loss\n");
  const Lowering lowering(spec::read_model(file.path), "plain-pytorch");
  program::TrainingJob job;
  job.micro_batch = 4;
  job.recompute = program::Recompute::full;
  const std::size_t once = lowering.lower(job).instructions.size();
  CHECK(once > 0);
  CHECK(lowering.lower(job).instructions.size() == once);
}

TEST_CASE("a cycle is shown with the operators in it") {
  const std::string cycle =
      "  a: {kind: add, from: [x, c]}\n  b: {kind: relu, from: a}\n  c: {kind: relu, from: b}\n"
      "  top: {kind: relu, from: c}\n";
  CHECK(faults_of(with(cycle + classifier)) ==
        "test.yaml:6:3: error: a cycle of 3 operators: 'a' reads 'c', which reads 'b', which reads "
        "'a'\n    a: {kind: add, from: [x, c]}\n    ^\n"
        "  what an earlier pass gave is written as a loop: 'repeat'\n");
  CHECK(contains(faults_of(with("  top: {kind: relu, from: top}\n" + classifier)),
                 "test.yaml:6:3: error: 'top' reads itself"));
}

TEST_CASE("a join that does not go together names both operators and their shapes") {
  const std::string faults =
      faults_of(with("  a: {kind: convolution, from: x, channels: 6, kernel: 3}\n"
                     "  b: {kind: convolution, from: x, channels: 6, kernel: 1}\n"
                     "  top: {kind: add, from: [a, b]}\n" +
                     classifier));
  CHECK(contains(faults, "test.yaml:8:3: error: 'top' of kind 'add' does not go: "));
  CHECK(contains(faults, "'a' gives (2, 6, 6, 6) fp32, 'b' gives (2, 6, 8, 8) fp32"));
  CHECK(contains(faults_of(with("  top: {kind: concat, from: [x, labels]}\n" + classifier)),
                 "'x' gives (2, 3, 8, 8) fp32, 'labels' gives (2) int64"));
}

TEST_CASE("unknown kinds, fields and names are shown with what was meant, all at once") {
  const std::string faults =
      faults_of(with("  a: {kind: convolutoin, from: x, channels: 6, kernel: 3}\n"
                     "  b: {kind: convolution, from: a, chanels: 6, kernel: 1}\n"
                     "  top: {kind: relu, from: bb}\n" +
                     classifier));
  CHECK(contains(faults, "test.yaml:6:13: error: operator 'a': unknown kind 'convolutoin'"));
  CHECK(contains(faults, "did you mean 'convolution'?"));
  CHECK(contains(faults, "test.yaml:7:35: error: operator 'b': kind 'convolution' has no field"));
  CHECK(contains(faults, "did you mean 'channels'?"));
  CHECK(contains(faults,
                 "test.yaml:7:3: error: operator 'b' of kind 'convolution' lacks the field "
                 "'channels'"));
  CHECK(contains(faults, "test.yaml:8:27: error: operator 'top': no operator or input is named"));
  CHECK(contains(faults, "did you mean 'b'?"));
}

TEST_CASE("a graph without a loss, with one that is no number, or with nothing to train") {
  const std::string good = with("  top: {kind: relu, from: x}\n" + classifier);
  CHECK(faults_of(good) == "");
  const std::string no_loss = good.substr(0, good.rfind("loss: loss"));
  const std::string faults = faults_of(no_loss);
  CHECK(contains(faults, "test.yaml:1:1: error: the graph names no loss"));
  CHECK(contains(faults, "it could be: loss"));
  CHECK(
      contains(faults_of(no_loss + "loss: logits\noutputs: [loss]\n"),
               "test.yaml:10:7: error: the loss must be one number, 'logits' gives (2, 10) fp32"));
  CHECK(contains(faults_of("graph: t\ninputs: {x: {shape: [batch, 3]}}\noperators:\n"
                           "  loss: {kind: mean, from: x}\nloss: loss\n"),
                 "nothing is trained: no operator before 'loss' has parameters"));
  CHECK(contains(faults_of(no_loss + "loss: lost\n"), "did you mean 'loss'?"));
}

TEST_CASE("what nobody reads, and what is written over too early") {
  CHECK(contains(
      faults_of(with("  top: {kind: relu, from: x}\n  left: {kind: relu, from: x}\n" + classifier)),
      "test.yaml:7:3: error: nothing reads 'left'"));
  CHECK(contains(faults_of(with("  a: {kind: convolution, from: x, channels: 3, kernel: 1}\n"
                                "  b: {kind: relu, from: a, in_place: true}\n"
                                "  top: {kind: add, from: [a, b]}\n" +
                                classifier)),
                 "test.yaml:7:3: error: 'b' writes over 'a', which others read too"));
  CHECK(contains(faults_of(with("  c: {kind: convolution, from: x, channels: 3, kernel: 1}\n"
                                "  a: {kind: sigmoid, from: c}\n"
                                "  top: {kind: relu, from: a, in_place: true}\n" +
                                classifier)),
                 "writes over the result of 'a', which its backward needs"));
  CHECK(contains(faults_of(with("  top: {kind: relu, from: x, in_place: true}\n" + classifier)),
                 "'top' cannot write over the input 'x'"));
}

TEST_CASE("writing over what another keeps is refused as PyTorch does, also through other names") {
  const std::string trained = "  a: {kind: convolution, from: x, channels: 3, kernel: 1}\n";
  const std::string over = "  over: {kind: relu, from: v, in_place: true}\n";
  const std::string top = "  top: {kind: add, from: [g, over]}\n" + classifier;
  const std::vector<std::string> names = {
      "contiguous, from: a", "cast, from: a, dtype: fp32", "dropout, from: a, rate: 0",
      "reshape, from: a, shape: [3, 8, 8]", "slice, from: a, dimension: 1, start: 0, end: 3"};
  for (const std::string& kind : names) {
    CAPTURE(kind);
    const std::string v = "  v: {kind: " + kind + "}\n";
    const std::string refused =
        faults_of(with(trained + "  g: {kind: gelu, from: a}\n" + v + over + top));
    CHECK(contains(refused,
                   "test.yaml:9:3: error: 'over' writes over what 'g' keeps for its "
                   "backward\n"));
    CHECK(contains(refused, "leave out 'in_place'"));
    // What keeps nothing, or keeps the result of what wrote, is none the worse.
    CHECK(faults_of(with(trained + "  g: {kind: shift, from: a, by: 1}\n" + v + over + top)) == "");
    CHECK(faults_of(with(trained + v + over + "  g: {kind: gelu, from: over}\n" + top)) == "");
    // What runs behind it keeps what it has become.
    CHECK(faults_of(with(trained + v + over + "  g: {kind: gelu, from: a}\n" + top)) == "");
  }
  const std::string copied = "  v: {kind: scale, from: a, by: 2}\n";
  CHECK(faults_of(with(trained + "  g: {kind: gelu, from: a}\n" + copied + over + top)) == "");
}

TEST_CASE("under autocast an operator may keep a cast, over whose source others may write") {
  const std::string text =
      "graph: t\ninputs: {x: {shape: [batch, 8]}}\noperators:\n"
      "  a: {kind: linear, from: x, outputs: 8}\n  n: {kind: layer_norm, from: a}\n"
      "  g: {kind: linear, from: n, outputs: 8}\n"
      "  over: {kind: relu, from: n, in_place: true}\n"
      "  sum: {kind: add, from: [g, over]}\n  loss: {kind: mean, from: sum}\nloss: loss\n";
  const test::TemporaryFile file(text);
  const Lowering lowering(spec::read_model(file.path), "plain-pytorch");
  TrainingJob job;
  job.parameters = DType::f32;
  const std::string refused = "'over' writes over what 'g' keeps for its backward";
  CHECK(contains(test::errors_of([&] { lowering.graph(job); }), refused));
  CHECK(contains(test::errors_of([&] { lowering.lower(job); }), refused));
  job.autocast = DType::bf16;
  CHECK(test::errors_of([&] { lowering.graph(job); }) == "");
  CHECK(test::errors_of([&] { lowering.lower(job); }) == "");
}

TEST_CASE("numbers that cannot be are refused where they stand") {
  for (const std::string& number : std::vector<std::string>{
           "0", "-1", "1000000000000000000", "1e18", "99999999999999999999", "'many'", "many",
           "[1, 2]", "true", "1.5", "none", "batch - batch", "1 // 0", "open('x')"}) {
    CAPTURE(number);
    for (const std::string& field :
         std::vector<std::string>{"channels", "kernel", "stride", "groups", "dilation"}) {
      CAPTURE(field);
      std::string conv = "  top: {kind: convolution, from: x";
      for (const std::string& key : std::vector<std::string>{"channels", "kernel"}) {
        if (key != field) conv += ", " + key + ": 3";
      }
      conv += ", " + field + ": " + number + "}\n";
      const std::string faults = faults_of(with(conv + classifier));
      // True is 1, as in Python; none is what is not given.
      if ((number == "true" || number == "none") && faults.empty()) continue;
      CHECK(contains(faults, "test.yaml:6:"));
    }
    const std::string loop = "  top:\n    repeat: " + number +
                             "\n    from: x\n    operators:\n"
                             "      a: {kind: relu, from: top}\n    result: a\n";
    CHECK(contains(faults_of(with(loop + classifier)), "error: "));
  }
}

TEST_CASE("files that are no graph") {
  CHECK(contains(faults_of("graph: t\n"), "the graph lacks the key 'inputs'"));
  CHECK(contains(faults_of("graph: t\n"), "the graph lacks the key 'operators'"));
  CHECK(contains(faults_of("operators: [a, b]\ninputs: 3\nloss: x\n"), "expected a map"));
  CHECK(contains(faults_of("operators: {a: {kind: relu, from: [x]}}\ninputs: {x: {shape: 3}}\n"
                           "loss: a\n"),
                 "expected a list"));
  CHECK(contains(faults_of(with("  top: &a {kind: relu, from: x}\n" + classifier)),
                 "YAML anchors are not supported"));
  CHECK(contains(faults_of(with("  x: {kind: relu, from: labels}\n  top: {kind: relu, from: x}\n" +
                                classifier)),
                 "'x' is the name of an input already"));
  CHECK(contains(faults_of(with("  a b: {kind: relu, from: x}\n  top: {kind: relu, from: a b}\n" +
                                classifier)),
                 "'a b' is no name for an operator"));
  CHECK(contains(
      faults_of(with("  top: {kind: relu, from: x}\n  top: {kind: gelu, from: x}\n" + classifier)),
      "duplicate key 'top'"));
  CHECK(contains(faults_of(with("  top: {kind: relu, from: {a: b}}\n" + classifier)),
                 "expected a name, found a map"));
  CHECK(contains(faults_of(with("  top: {kind: add, from: x}\n" + classifier)),
                 "kind 'add' takes 2 inputs or more, found 1"));
  CHECK(contains(faults_of(with("  top: {kind: relu, from: [x, x]}\n" + classifier)),
                 "kind 'relu' takes 1 input, found 2"));
}

TEST_CASE("a program that has no place for a batch of its own says so") {
  const test::TemporaryFile file(with("  top: {kind: relu, from: x}\n" + classifier));
  const std::string faults =
      test::errors_of([&] { const Lowering lowering(spec::read_model(file.path), "hf-trainer"); });
  CHECK(contains(faults, "take the framework plain-pytorch"));
}

namespace {

/// Counts and runs it. A way that were quadratic in the operators would not end in a minute.
void run_through(const std::string& text, const std::string& name, std::int64_t operators) {
  const test::TemporaryFile file(text, name);
  const Lowering lowering(spec::read_model(file.path), "plain-pytorch");
  CHECK(lowering.parameter_count() == 72);
  TrainingJob job;
  job.parameters = DType::f32;
  CHECK(lowering.graph(job).total.operators >= operators);
}

}  // namespace

TEST_CASE("100,000 operators: a deep chain, a wide one, a loop") {
  constexpr int count = 100'000;
  std::string deep =
      R"({"inputs": {"x": {"shape": ["batch", 8]}}, "operators": {"a0": {"kind": "linear", "from": "x", "outputs": 8})";
  std::string wide = deep;
  std::string joined;
  for (int i = 1; i <= count; ++i) {
    const std::string name =
        ",\n\"a" + std::to_string(i) + "\": {\"kind\": \"relu\", \"from\": \"a";
    deep += name + std::to_string(i - 1) + "\"}";
    wide += name + "0\"}";
    joined += (i > 1 ? ", " : "") + ("\"a" + std::to_string(i) + "\"");
  }
  deep += ",\n\"end\": {\"kind\": \"mean\", \"from\": \"a" + std::to_string(count) +
          "\"}}, \"loss\": \"end\"}";
  wide += ",\n\"sum\": {\"kind\": \"add\", \"from\": [" + joined +
          "]}, \"end\": {\"kind\": \"mean\", \"from\": \"sum\"}}, \"loss\": \"end\"}";
  const std::string loop =
      "inputs: {x: {shape: [batch, 8]}}\noperators:\n  a: {kind: linear, from: x, outputs: 8}\n"
      "  many:\n    repeat: 100000\n    from: a\n    operators: {b: {kind: relu, from: many}}\n"
      "    result: b\n  end: {kind: mean, from: many}\nloss: end\n";
  run_through(deep, "deep.json", count);
  run_through(wide, "wide.json", count);
  run_through("graph: t\n" + loop, "loop.yaml", count);
}

TEST_CASE("expressions without end are refused, with brackets or without") {
  const std::string long_one = "an expression of more than 1,000 values";
  const std::string deep_one = "expression nested too deeply";
  for (const auto& [piece, fault] : {std::pair("-", deep_one),
                                     {"1+", long_one},
                                     {"2**", deep_one},
                                     {"not ", deep_one},
                                     {"1*", long_one}}) {
    std::string expression;
    for (int i = 0; i < 50'000; ++i) expression += piece;
    const std::string faults =
        faults_of(with("  top: {kind: convolution, from: x, kernel: 1, channels: \"" + expression +
                       "1\"}\n" + classifier));
    CHECK(contains(faults, fault));
  }
  std::string sum = "1";
  for (int i = 0; i < 900; ++i) sum += "+1";
  const graph::ModelGraph graph = graph_of(with(
      "  top: {kind: convolution, from: x, kernel: 2 ** 0, channels: " + sum + "}\n" + classifier));
  CHECK(graph.find_layer("top")->parameters == 901 * 4);
}

TEST_CASE("numbers of a graph that are too large or mean something else are shown") {
  const auto numbers = [](const std::string& given) {
    return faults_of("numbers: {" + given + "}\n" +
                     with("  top: {kind: relu, from: x}\n" + classifier));
  };
  CHECK(contains(numbers("a: 2 ** 30, b: a * a"),
                 ": error: 'b': a number beyond 1,099,511,627,776\n"));
  CHECK(contains(numbers("a: 9 ** 9 ** 9"), "error: 'a': "));
  CHECK(numbers("a: 2 ** 10 // 4").empty());
  CHECK(contains(numbers("a: 1 // 0"), "test.yaml:1:14: error: 'a': division by zero\n"));
  for (const std::string name : {"batch", "sequence", "pass"}) {
    CHECK(contains(numbers(name + ": 3"), "'" + name + "' is no number of the graph"));
  }
}

TEST_CASE("fields of another kind of value are refused") {
  const auto faults = [](const std::string& op) {
    return faults_of(with("  first: {kind: convolution, from: x, channels: 4, kernel: 1}\n  top: " +
                          op + "\n" + classifier));
  };
  CHECK(contains(faults("{kind: dropout, from: first, rate: 2}"), "a dropout rate is from 0 to 1"));
  CHECK(contains(faults("{kind: dropout, from: first, rate: -1 / 2}"),
                 "a dropout rate is from 0 to 1"));
  CHECK(contains(faults("{kind: dropout, from: first, rate: [1]}"),
                 "the rate must be a number, found a list"));
  CHECK(faults("{kind: dropout, from: first, rate: 1}").empty());
  CHECK(contains(faults("{kind: power, from: first, exponent: fp32}"),
                 "the exponent must be a number"));
  CHECK(contains(faults("{kind: convolution, from: first, channels: true, kernel: 1}"),
                 "'channels' cannot be true or false"));
  CHECK(contains(faults("{kind: convolution, from: first, channels: 4, kernel: 1, bias: 5}"),
                 "'bias' must be true or false"));
  CHECK(contains(faults("{kind: mean, from: first, dimension: [1, -3]}"),
                 "a dimension is named twice"));
  CHECK(contains(faults("{kind: slice, from: first, dimension: 1, start: 0, end: int(2.0 ** 99)}"),
                 "no whole number below 2^63"));
}

TEST_CASE("what only goes wrong for the job's batch is shown where the first operator says it") {
  // Equal operators are made alike: 32 channels for the batch that sizes are found with.
  const std::string faults = faults_of(
      with("  a: {kind: convolution, from: x, channels: 64 // (4 - batch), kernel: 1}\n"
           "  b: {kind: convolution, from: a, channels: 64 // (4 - batch), kernel: 1}\n"
           "  top: {kind: convolution, from: b, channels: 64 // (4 - batch), kernel: 1}\n" +
           classifier));
  CHECK(faults.starts_with("test.yaml:6:45: error: division by zero"));
}

TEST_CASE("faults of very many operators are counted, not all shown") {
  std::string operators;
  for (int i = 0; i < 20'000; ++i) {
    operators += "  o" + std::to_string(i) + ": {kind: rely" + std::to_string(i) + ", from: x}\n";
  }
  CHECK(contains(faults_of(with(operators + "  top: {kind: relu, from: x}\n" + classifier)),
                 "and 19980 more errors"));
}

}  // namespace shardfit
