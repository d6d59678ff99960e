// Recomputation on chains: the published table's answers, the closed form for equal layers, and a
// simulator that runs every sequence the table proposes.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "partition/recompute.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/solver/rotor/";

/// Runs what the table proposes and compares time and memory with what it promised.
void check_sequence(const RecomputeTable& table, int first, int last, int slots) {
  const double ms = table.ms(first, last, slots);
  if (std::isinf(ms)) {
    CHECK(table.sequence(first, last, slots).empty());
    return;
  }
  ChainRun run = simulate(table.chain(), first, last, table.sequence(first, last, slots));
  CHECK(run.fault == "");
  REQUIRE(run.valid);
  CHECK(run.ms == doctest::Approx(ms).epsilon(1e-12));
  CHECK(run.peak_slots <= slots);
  // The sequence fits in its own peak, so the table must do as well there.
  CHECK(table.ms(first, last, run.peak_slots) <= ms * (1 + 1e-12));
}

SlotChain random_chain(std::mt19937& random, int length) {
  SlotChain c;
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < length; ++i) {
    c.forward_ms.push_back(pick(5));
    c.backward_ms.push_back(pick(9));
    c.out.push_back(1 + pick(3));
    c.saved.push_back(c.out.back() + pick(4));
  }
  return c;
}

}  // namespace

TEST_CASE("rotor's answers: fewest slots, full speed, time at every share of the memory") {
  Diagnostics faults;
  SourcePtr lines = spec::read_source(data + "rotor_reference_slots500.jsonl");
  std::stringstream in(lines->text);
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    spec::Node root = test::parse_node(line, "line.json");
    auto number = [](const spec::Node& n) { return std::stod(n.text); };
    const std::string name = root.child("name")->text;
    CAPTURE(name);
    ChainInstance chain = read_chain(spec::read_source(data + name + ".chain.json"));
    const int most = std::stoi(root.child("mmax")->text), last = chain.length() - 1;
    RecomputeTable table(to_slots(chain, std::stoi(root.child("slots")->text)), most);
    CHECK(table.chain().unit_bytes ==
          doctest::Approx(number(*root.child("unit_bytes"))).epsilon(1e-9));
    const double base = table.ms(0, last, most);
    CHECK(base == doctest::Approx(number(*root.child("base_ms"))).epsilon(1e-9));
    CHECK(table.fewest_slots(0, last, base * (1 + 1e-12)) == std::stoi(root.child("full")->text));
    CHECK(table.fewest_slots(0, last, 1e300) == std::stoi(root.child("min_feasible")->text));
    for (const spec::Node& row : root.child("res")->children) {
      const int slots = std::stoi(row.children[1].text);
      const double ms = table.ms(0, last, slots);
      if (row.children[2].kind == spec::Kind::null)
        CHECK(std::isinf(ms));
      else
        CHECK(std::abs(ms - number(row.children[2])) < 0.00051);  // printed to three decimals
      check_sequence(table, 0, last, slots);
      ++compared;
    }
  }
  CHECK(compared == 40);
}

TEST_CASE("every interval and budget of real chains runs as the table says") {
  for (const char* name : {"alexnet", "resnet18"}) {
    ChainInstance chain = read_chain(spec::read_source(data + name + ".chain.json"));
    RecomputeTable table(to_slots(chain, 60), 90);
    for (int i = 0; i < chain.length(); i += 3)
      for (int l = i; l < chain.length(); l += 2)
        for (int s = 1; s <= 90; s += 4) check_sequence(table, i, l, s);
  }
}

TEST_CASE("sequences of random chains run within their slots") {
  std::mt19937 random(5);
  for (unsigned seed = 0; seed < test::fuzz_rounds(300); ++seed) {
    CAPTURE(seed);
    const int n = 1 + static_cast<int>(random() % 9);
    RecomputeTable table(random_chain(random, n), 50);
    for (int s = 0; s <= 50; ++s) {
      check_sequence(table, 0, n - 1, s);
      if (s > 0) CHECK(table.ms(0, n - 1, s) <= table.ms(0, n - 1, s - 1));
    }
    double base = 0;
    for (int i = 0; i < n; ++i) base += table.chain().forward_ms[i] + table.chain().backward_ms[i];
    CHECK(table.ms(0, n - 1, 50) >= base);
  }
}

TEST_CASE("equal layers: Griewank and Walther's closed form for the extra forward steps") {
  // Unit forward time, free backward. With checkpoints of one slot, c of them (the input among
  // them) reverse l steps with r l - C(c + r, c + 1) extra forward steps, r the smallest with C(c +
  // r, c) >= l.
  auto binomial = [](int n, int k) {
    double b = 1;
    for (int i = 1; i <= k; ++i) b = b * (n - k + i) / i;
    return b;
  };
  const int longest = 25, most = 6;
  // t(l, c) by its own recurrence, as a check of the formula itself.
  std::vector<std::vector<double>> t(longest + 1, std::vector<double>(most + 1, 0));
  for (int c = 1; c <= most; ++c)
    for (int l = 2; l <= longest; ++l) {
      t[l][c] = l * (l - 1) / 2.0;
      for (int j = 1; c > 1 && j < l; ++j)
        t[l][c] = std::min(t[l][c], j + t[l - j][c - 1] + t[j][c]);
      int r = 0;
      while (binomial(c + r, c) < l) ++r;
      CHECK(t[l][c] == r * l - binomial(c + r, c + 1));
    }
  SlotChain chain;
  chain.forward_ms.assign(longest + 1, 1);
  chain.backward_ms.assign(longest + 1, 0);
  chain.out.assign(longest + 1, 1);
  // What the backward needs is large: it never pays to keep it for longer than the step itself.
  constexpr int large = 1000;
  chain.saved.assign(longest + 1, large);
  RecomputeTable table(chain, large + 2 + most);
  for (int l = 2; l <= longest; ++l)
    for (int c = 1; c <= most; ++c) {
      CAPTURE(l);
      CAPTURE(c);
      // The step in work takes in + saved + out and one slot for its own input; the input of the
      // whole interval is not counted.
      const double extra = table.ms(1, l, large + 2 + c) - l;
      CHECK(extra == t[l][c]);
    }
}

TEST_CASE("a chain is cut and recomputed together: every other cut is no better") {
  std::mt19937 random(9);
  for (unsigned seed = 0; seed < test::fuzz_rounds(200); ++seed) {
    CAPTURE(seed);
    const int n = 2 + static_cast<int>(random() % 6), budget = 5 + static_cast<int>(random() % 30);
    const int microbatches = 1 + static_cast<int>(random() % 3);
    RecomputeTable table(random_chain(random, n), 60);
    const SlotChain& chain = table.chain();
    ChainSplit split = split_chain(table, 2, budget, microbatches);
    auto stage_ms = [&](int i, int j, int in_flight) {
      double forward = 0, base = 0;
      int saved = 0;
      for (int k = i; k <= j; ++k) {
        forward += chain.forward_ms[k];
        base += chain.forward_ms[k] + chain.backward_ms[k];
        saved += chain.saved[k];
      }
      const double input = table.ms(i, j, budget - in_flight * chain.in(i));
      if (in_flight == 1) return input;
      const double all =
          table.ms(i, j, budget - chain.in(i) - (in_flight - 1) * (saved + chain.in(i)));
      return std::min(input + forward, all == base ? base : INFINITY);
    };
    double best = stage_ms(0, n - 1, 1);
    for (int j = 0; j + 1 < n; ++j)
      best = std::min(
          best, std::max(stage_ms(0, j, std::min(2, microbatches)), stage_ms(j + 1, n - 1, 1)));
    CHECK(split.feasible == std::isfinite(best));
    if (!split.feasible) continue;
    CHECK(split.objective_ms == doctest::Approx(best));
    for (const ChainStage& s : split.stages) check_sequence(table, s.first, s.last, s.slots);
  }
}
