// Graphs of a person's own, of 10^5 operators: reading the text, and all that `shardfit graph`
// does, against libyaml's reading of the same text into the same tree. Process CPU time (user and
// system), best of five. Usage: graph_bench [OPERATORS]

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <ostream>
#include <streambuf>
#include <string>
#include <vector>

#include "../support.h"
#include "cli/graph_command.h"
#include "spec/formats.h"
#include "spec/reader.h"

namespace {

using namespace shardfit;

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

double best_ms(const std::function<void()>& body) {
  double best = 1e300;
  for (int i = 0; i < 5; ++i) {
    const double start = cpu_ms();
    body();
    best = std::min(best, cpu_ms() - start);
  }
  return best;
}

/// Takes text and keeps none of it.
class Nowhere : public std::streambuf {
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
  int overflow(int c) override { return c == traits_type::eof() ? 0 : c; }
};

std::string with_head(const std::string& operators, const std::string& last,
                      const std::string& places = "") {
  return "graph: bench\ninputs:\n  x: {shape: [batch, " + places + "64]}\n  y: {shape: [batch" +
         (places.empty() ? "" : ", 16") +
         "], dtype: int64}\n"
         "operators:\n  first: {kind: linear, from: x, outputs: 64}\n" +
         operators + "  logits: {kind: linear, from: " + last +
         ", outputs: 10}\n  loss: {kind: cross_entropy, from: [logits, y]}\nloss: loss\n";
}

/// One after the other, without weights.
std::string chain(int count) {
  std::string operators, last = "first";
  for (int i = 0; i < count; ++i) {
    const std::string name = "o" + std::to_string(i);
    operators += "  " + name + ": {kind: relu, from: " + last + "}\n";
    last = name;
  }
  return with_head(operators, last);
}

/// Branches of a linear layer and a GELU, joined sixteen at a time.
std::string branches(int count) {
  std::string operators;
  std::vector<std::string> open;
  for (int i = 0; i < count / 2; ++i) {
    const std::string number = std::to_string(i);
    operators += "  wide" + number + ": {kind: linear, from: first, outputs: 64}\n";
    operators += "  act" + number + ": {kind: gelu, from: wide" + number + "}\n";
    open.push_back("act" + number);
  }
  std::size_t at = 0;
  for (int joins = 0; open.size() - at > 1; ++joins) {
    const std::size_t end = std::min(at + 16, open.size());
    const std::string name = "join" + std::to_string(joins);
    operators += "  " + name + ": {kind: add, from: [" +
                 join(std::span(open).subspan(at, end - at)) + "]}\n";
    at = end;
    open.push_back(name);
  }
  return with_head(operators, open.back());
}

/// Blocks of six kinds with a skip around each.
std::string blocks(int count) {
  std::string operators, last = "first";
  for (int i = 0; i < count / 6; ++i) {
    const std::string b = "b" + std::to_string(i);
    operators += "  " + b + "_norm: {kind: layer_norm, from: " + last + "}\n  " + b +
                 "_up: {kind: linear, from: " + b + "_norm, outputs: 4 * 64}\n  " + b +
                 "_act: {kind: gelu, from: " + b + "_up}\n  " + b +
                 "_down: {kind: linear, from: " + b + "_act, outputs: 64, bias: false}\n  " + b +
                 "_drop: {kind: dropout, from: " + b + "_down, rate: 0.1}\n  " + b +
                 "_sum: {kind: add, from: [" + last + ", " + b + "_drop]}\n";
    last = b + "_sum";
  }
  return with_head(operators, last);
}

/// Blocks of a transformer: attention, two norms, two linear layers and two skips around them.
std::string transformer(int count) {
  std::string operators, last = "first";
  for (int i = 0; i < count / 9; ++i) {
    const std::string b = "b" + std::to_string(i);
    operators += "  " + b + "_norm: {kind: layer_norm, from: " + last + "}\n  " + b +
                 "_attend: {kind: attention, from: " + b + "_norm, heads: 4}\n  " + b +
                 "_sum: {kind: add, from: [" + last + ", " + b + "_attend]}\n  " + b +
                 "_rms: {kind: rms_norm, from: " + b + "_sum}\n  " + b +
                 "_up: {kind: linear, from: " + b + "_rms, outputs: 4 * 64}\n  " + b +
                 "_act: {kind: gelu, from: " + b + "_up}\n  " + b +
                 "_down: {kind: linear, from: " + b + "_act, outputs: 64}\n  " + b +
                 "_drop: {kind: dropout, from: " + b + "_down, rate: 0.1}\n  " + b +
                 "_end: {kind: add, from: [" + b + "_sum, " + b + "_drop]}\n";
    last = b + "_end";
  }
  return with_head(operators, last, "16, ");
}

/// Attentions one after the other: five rows of the table each.
std::string attentions(int count) {
  std::string operators, last = "first";
  for (int i = 0; i < count; ++i) {
    const std::string name = "o" + std::to_string(i);
    operators += "  " + name + ": {kind: attention, from: " + last + ", heads: 4}\n";
    last = name;
  }
  return with_head(operators, last, "16, ");
}

/// Linear layers, no two of the same size.
std::string different(int count) {
  std::string operators, last = "first";
  for (int i = 0; i < count; ++i) {
    const std::string name = "o" + std::to_string(i);
    operators += "  " + name + ": {kind: linear, from: " + last +
                 ", outputs: " + std::to_string(i + 1) + "}\n";
    last = name;
  }
  return with_head(operators, last);
}

void measure(const char* name, const std::string& text) {
  const test::TemporaryFile file(text);
  const SourcePtr source = spec::read_source(file.path);
  Diagnostics faults;
  const double libyaml = best_ms([&] { spec::read_any_yaml(source, faults); });
  const double read = best_ms([&] { spec::read_yaml(source, faults); });
  cli::GraphOptions options;
  options.model = file.path;
  Nowhere nowhere;
  const auto run = [&] {
    std::ostream out(&nowhere);
    cli::graph_command(options, out, out);
  };
  const double table = best_ms(run);
  options.json = true;
  const double json = best_ms(run);
  std::printf("%-9s %8.0f ms %8.0f ms %8.0f ms %6.2f %8.0f ms\n", name, libyaml, read, table,
              table / libyaml, json);
}

}  // namespace

int main(int argc, char** argv) {
  const int operators = argc > 1 ? std::atoi(argv[1]) : 100'000;
  std::printf("%d operators\n          by libyaml     reading       table  ratio        JSON\n",
              operators);
  measure("chain", chain(operators));
  measure("branches", branches(operators));
  measure("blocks", blocks(operators));
  measure("attention", transformer(operators));
  measure("rows", attentions(operators));
  measure("different", different(operators));
}
