// Which blocks recompute, which layers a stage holds: against every other choice, against the
// tables of the partition room, and in the search.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "partition/block_choice.h"
#include "partition/layer_cut.h"
#include "partition/partition.h"
#include "partition/recompute.h"
#include "search/block_levels.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

using Blocks = std::vector<std::int64_t>;

double seconds_of(const BlockChain& chain, const Blocks& again) {
  double sum = 0;
  for (const std::int64_t i : again) sum += chain.blocks[static_cast<std::size_t>(i)].again_seconds;
  return sum;
}

/// Every set of blocks, each by itself.
double least_seconds(const BlockChain& chain, std::int64_t budget) {
  double least = std::numeric_limits<double>::infinity();
  const std::size_t count = chain.blocks.size();
  for (unsigned set = 0; set < (1U << count); ++set) {
    Blocks again;
    for (std::size_t i = 0; i < count; ++i) {
      if ((set >> i & 1U) != 0) again.push_back(static_cast<std::int64_t>(i));
    }
    if (bytes_of(chain, again) <= budget) least = std::min(least, seconds_of(chain, again));
  }
  return least;
}

Blocks first(std::size_t n) {
  Blocks blocks(n);
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

/// The same chain for the table of whole chains: a block run again keeps its output alone, and its
/// backward needs its input and the gradient of its output besides.
BlockChain as_blocks(const SlotChain& chain) {
  BlockChain out;
  for (int i = 0; i < chain.length(); ++i) {
    out.blocks.push_back(
        {chain.saved[i], chain.out[i], chain.in(i) + chain.out[i], chain.forward_ms[i]});
  }
  return out;
}

}  // namespace

TEST_CASE("the blocks chosen take no longer than any other set that fits") {
  std::mt19937 random(3);
  const auto pick = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  for (unsigned seed = 0; seed < test::fuzz_rounds(300); ++seed) {
    CAPTURE(seed);
    BlockChain chain;
    const std::int64_t count = 1 + pick(9);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t kept = pick(4);
      chain.blocks.push_back({kept + pick(12), kept, pick(8), static_cast<double>(pick(6))});
    }
    chain.beside = pick(10);
    const std::int64_t most = bytes_of(chain, {});
    for (std::int64_t budget = 0; budget <= most; ++budget) {
      CAPTURE(budget);
      const double least = least_seconds(chain, budget);
      const auto choice = choose_blocks(chain, budget);
      REQUIRE(choice.has_value() == !std::isinf(least));
      if (!choice) continue;
      CHECK(choice->seconds == least);
      CHECK(seconds_of(chain, choice->again) == choice->seconds);
      CHECK(choice->bytes == bytes_of(chain, choice->again));
      CHECK(choice->bytes <= budget);
    }
  }
}

TEST_CASE("of equal blocks the first ones are the best choice under every budget") {
  for (const int count : {2, 7, 32}) {
    BlockChain chain;
    chain.blocks.assign(static_cast<std::size_t>(count), {340, 20, 55, 1.5});
    chain.beside = 200;
    CHECK(search::uniform(chain));
    for (std::int64_t budget = bytes_of(chain, first(static_cast<std::size_t>(count)));
         budget <= bytes_of(chain, {}); budget += 7) {
      CAPTURE(budget);
      const auto choice = choose_blocks(chain, budget);
      REQUIRE(choice);
      CHECK(choice->again == first(choice->again.size()));
      // One block fewer does not fit.
      if (!choice->again.empty()) {
        CHECK(bytes_of(chain, first(choice->again.size() - 1)) > budget);
      }
    }
  }
}

TEST_CASE("the table of whole chains gains no more on equal blocks than the inputs between them") {
  // It may also run several blocks again from the input of the first, or one block more than once.
  SlotChain chain;
  constexpr int count = 10;
  chain.forward_ms.assign(count, 1);
  chain.backward_ms.assign(count, 2);
  chain.out.assign(count, 1);
  chain.saved.assign(count, 17);
  const RecomputeTable table(chain, 200);
  const BlockChain blocks = as_blocks(chain);
  const double base = 3.0 * count;
  int compared = 0, equal = 0;
  for (int slots = 0; slots <= 200; ++slots) {
    CAPTURE(slots);
    const auto choice = choose_blocks(blocks, slots);
    const double best = table.ms(0, count - 1, slots);
    if (!choice) continue;
    ++compared;
    CHECK(best <= base + choice->seconds);
    const auto with_inputs = choose_blocks(blocks, slots + count);
    REQUIRE(with_inputs);
    CHECK(best >= base + with_inputs->seconds);
    if (best == base + choice->seconds) ++equal;
  }
  CHECK(compared > 150);
  CHECK(equal > compared / 2);
}

TEST_CASE("on random chains the table of whole chains bounds the choice from below") {
  std::mt19937 random(4);
  const auto pick = [&](unsigned n) { return static_cast<int>(random() % n); };
  for (unsigned seed = 0; seed < test::fuzz_rounds(100); ++seed) {
    CAPTURE(seed);
    SlotChain chain;
    const int count = 2 + pick(8);
    double base = 0;
    for (int i = 0; i < count; ++i) {
      chain.forward_ms.push_back(1 + pick(4));
      chain.backward_ms.push_back(pick(6));
      chain.out.push_back(1 + pick(2));
      chain.saved.push_back(chain.out.back() + pick(9));
      base += chain.forward_ms.back() + chain.backward_ms.back();
    }
    const RecomputeTable table(chain, 90);
    const BlockChain blocks = as_blocks(chain);
    for (int slots = 1; slots <= 90; ++slots) {
      CAPTURE(slots);
      if (const auto choice = choose_blocks(blocks, slots)) {
        CHECK(table.ms(0, count - 1, slots) <= base + choice->seconds);
      }
    }
  }
}

TEST_CASE("lists of blocks: written, read, and refused where they are none") {
  CHECK(search::block_words({0, 1, 2, 5, 8, 9}) == "0-2,5,8-9");
  CHECK(search::block_words({3}) == "3");
  CHECK(search::read_blocks("0-2,5,8-9") == Blocks{0, 1, 2, 5, 8, 9});
  for (const char* wrong :
       {"", ",", "1,", "2-1", "3,3", "5,2", "-1", "a", "1-", "0-99999999999", "1.5"}) {
    CAPTURE(wrong);
    CHECK_FALSE(search::read_blocks(wrong));
  }
}

TEST_CASE("the cut of a chain is the best of all cuts, in both numbers") {
  std::mt19937 random(6);
  const auto pick = [&](unsigned n) { return static_cast<int>(random() % n); };
  for (unsigned seed = 0; seed < test::fuzz_rounds(300); ++seed) {
    CAPTURE(seed);
    const int layers = 1 + pick(9), stages = 1 + pick(4);
    std::vector<double> first(static_cast<std::size_t>(layers)), second = first;
    for (double& one : first) one = pick(6);
    for (double& one : second) one = pick(6);
    const double most = 6 + pick(20);
    const auto load = [&](int stage, int from, int to) {
      StageLoad sum{static_cast<double>(stage == 0 ? 3 : 0), static_cast<double>(stage)};
      for (int i = from; i < to; ++i) {
        sum.first += first[static_cast<std::size_t>(i)];
        sum.second += second[static_cast<std::size_t>(i)] * (stages - stage);
      }
      if (sum.second > most) sum.first = std::numeric_limits<double>::infinity();
      return sum;
    };
    // Every cut, by the ends of its stages.
    std::pair<double, double> best(std::numeric_limits<double>::infinity(), 0);
    for (unsigned set = 0; set < (1U << (layers - 1)); ++set) {
      int stage = 0, from = 0;
      std::pair<double, double> worst(0, 0);
      for (int to = 1; to <= layers; ++to) {
        if (to < layers && (set >> (to - 1) & 1U) == 0) continue;
        const StageLoad one = load(stage, from, to);
        worst = {std::max(worst.first, one.first), std::max(worst.second, one.second)};
        from = to;
        ++stage;
      }
      if (stage == stages) best = std::min(best, worst);
    }
    const auto cut = cut_layers(layers, stages, load);
    REQUIRE(cut.has_value() == !std::isinf(best.first));
    if (!cut) continue;
    CHECK(cut->most_first == best.first);
    CHECK(cut->most_second == best.second);
    CHECK(std::accumulate(cut->layers.begin(), cut->layers.end(), 0) == layers);
    CHECK(*std::min_element(cut->layers.begin(), cut->layers.end()) >= 1);
  }
}

TEST_CASE("where stages are alike the cut is that of the partition solver") {
  std::mt19937 random(8);
  const auto pick = [&](unsigned n) { return static_cast<int>(random() % n); };
  for (unsigned seed = 0; seed < test::fuzz_rounds(60); ++seed) {
    CAPTURE(seed);
    const int layers = 4 + pick(12), stages = 2 + pick(2);
    RawGraph graph;
    for (int i = 0; i < layers; ++i) {
      RawGraph::Node node;
      node.accelerator_ms = 1 + pick(9);
      node.bytes = pick(9);
      graph.nodes.push_back(node);
      graph.send_cost.push_back(0);
      if (i > 0) graph.precedence.emplace_back(i - 1, i);
      if (i > 0) graph.edges.emplace_back(i - 1, i);
    }
    DeviceClass device;
    device.name = "card";
    device.count = stages;
    device.bytes = 4.0 * layers / stages + 6;
    const PartitionResult solved = solve_partition(graph, {device}, {});
    const auto load = [&](int, int from, int to) {
      StageLoad sum;
      for (int i = from; i < to; ++i) {
        sum.first += graph.nodes[static_cast<std::size_t>(i)].accelerator_ms;
        sum.second += graph.nodes[static_cast<std::size_t>(i)].bytes;
      }
      if (sum.second > device.bytes) sum.first = std::numeric_limits<double>::infinity();
      return sum;
    };
    double best = std::numeric_limits<double>::infinity();
    for (int used = 1; used <= stages; ++used) {  // the solver may leave a device empty
      if (const auto cut = cut_layers(layers, used, load)) best = std::min(best, cut->most_first);
    }
    REQUIRE(solved.feasible == !std::isinf(best));
    if (solved.feasible) CHECK(solved.objective_ms == best);
  }
}
