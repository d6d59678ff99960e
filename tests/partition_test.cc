// Exact partitions: equal brute force, equal the published optima, and carry a certificate that an
// independent count confirms.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "partition/partition.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/solver/";

/// Objective of every chain of down-sets by trying all of them: part of each node from 0 to K - 1,
/// never falling along the precedence, for every order of the devices.
double brute_force(const RawGraph& raw, const std::vector<DeviceClass>& devices,
                   const PartitionOptions& options) {
  std::vector<int> order;
  for (int d = 0; d < static_cast<int>(devices.size()); ++d)
    order.insert(order.end(), devices[d].count, d);
  const int n = static_cast<int>(raw.nodes.size()), k = static_cast<int>(order.size());
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> part(n, 0);
  for (;;) {
    bool good = true;
    for (auto [a, b] : raw.together) good = good && part[a] == part[b];
    if (options.contiguous)
      for (auto [a, b] : raw.precedence) good = good && part[a] <= part[b];
    if (good) {
      int last = 0;
      for (int v = 0; v < n; ++v) last = std::max(last, part[v]);
      std::vector<std::vector<int>> nodes(k);
      for (int v = 0; v < n; ++v) nodes[part[v]].push_back(v);
      std::vector<int> devices_in_order = order;
      do {
        double load = 0;
        for (int p = 0; p < k; ++p) {
          const DeviceClass& d = devices[devices_in_order[p]];
          Part measured = measure_part(raw, d, nodes[p]);
          load = std::max(load, measured.load_ms);
          if ((options.limit_last_part || p != last) && measured.bytes > d.bytes)
            load = std::numeric_limits<double>::infinity();
          for (int v : nodes[p])
            if (!raw.nodes[v].accelerator_supported && !d.cpu)
              load = std::numeric_limits<double>::infinity();
        }
        best = std::min(best, load);
      } while (std::next_permutation(devices_in_order.begin(), devices_in_order.end()));
    }
    int v = 0;
    while (v < n && ++part[v] == k) part[v++] = 0;
    if (v == n) return best;
  }
}

struct RandomCase {
  RawGraph raw;
  std::vector<DeviceClass> devices;
  PartitionOptions options;
};

/// Small numbers, so that ties and free nodes are common; colours, cycles of precedence between
/// them, backward-like edges against it, unsupported nodes, caps, unequal devices.
RandomCase random_case(std::mt19937& random) {
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  RandomCase c;
  const int n = 2 + pick(5);
  for (int v = 0; v < n; ++v) {
    double ms = pick(3) == 0 ? 0 : pick(6);
    c.raw.nodes.push_back(
        {ms, pick(4) == 0 ? 0.0 : 3 * ms, static_cast<double>(pick(4)), pick(15) != 0});
    c.raw.send_cost.push_back(pick(3) == 0 ? 0 : pick(4) * 0.5);
  }
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      if (pick(3) != 0) continue;
      if (pick(6) == 0) {
        c.raw.edges.emplace_back(b, a);
      } else {
        c.raw.edges.emplace_back(a, b);
        c.raw.precedence.emplace_back(a, b);
      }
    }
  if (pick(3) == 0) c.raw.together.emplace_back(pick(n), pick(n));
  double total = 0;
  for (const RawGraph::Node& node : c.raw.nodes) total += node.bytes;
  const int kinds = pick(5);
  const double cap = pick(2) ? std::ceil(total * 0.6) : std::numeric_limits<double>::infinity();
  c.devices.push_back({"gpu", kinds == 0 ? 3 : 2, false, 1, cap, true});
  if (kinds == 1)
    c.devices.push_back({"cpu", 1, true, 1, std::numeric_limits<double>::infinity(), false});
  if (kinds == 2)
    c.devices = {{"fast", 1, false, 2, cap, true}, {"slow", 1, false, 1, cap + 1, true}};
  if (kinds == 3)
    c.devices = {{"fast", 1, false, 2, cap, true}, {"slow", 2, false, 0.5, cap, false}};
  c.options.limit_last_part = pick(4) != 0;
  c.options.contiguous = pick(4) != 0;
  return c;
}

/// What every result promises, whatever the solver did.
void check_result(const RawGraph& raw, const std::vector<DeviceClass>& devices,
                  const PartitionOptions& options, const PartitionResult& r) {
  CHECK(r.lower_bound_ms <= r.objective_ms);
  CHECK(r.gap >= 0);
  CHECK((r.gap == 0) == (r.lower_bound_ms == r.objective_ms));
  if (!r.feasible) return;
  std::vector<int> part_of(raw.nodes.size(), -1);
  std::vector<int> used(devices.size(), 0);
  double most = 0;
  for (int p = 0; p < static_cast<int>(r.parts.size()); ++p) {
    const Part& part = r.parts[p];
    const DeviceClass& device = devices[part.device_class];
    Part measured = measure_part(raw, device, part.nodes);
    CHECK(measured.load_ms == part.load_ms);
    most = std::max(most, part.load_ms);
    if (options.limit_last_part || p + 1 < static_cast<int>(r.parts.size()))
      CHECK(part.bytes <= device.bytes);
    ++used[part.device_class];
    for (int v : part.nodes) {
      CHECK(part_of[v] == -1);
      part_of[v] = p;
    }
  }
  CHECK(most == r.objective_ms);
  CHECK(std::count(part_of.begin(), part_of.end(), -1) == 0);
  for (std::size_t d = 0; d < devices.size(); ++d) CHECK(used[d] <= devices[d].count);
  for (auto [a, b] : raw.together) CHECK(part_of[a] == part_of[b]);
  if (options.contiguous)
    for (auto [a, b] : raw.precedence) CHECK(part_of[a] <= part_of[b]);
}

}  // namespace

TEST_CASE("partitions of random graphs cost what brute force costs") {
  std::mt19937 random(20);
  int feasible = 0, infeasible = 0, unproven = 0;
  for (unsigned seed = 0; seed < test::fuzz_rounds(5000); ++seed) {
    CAPTURE(seed);
    RandomCase c = random_case(random);
    PartitionResult r = solve_partition(c.raw, c.devices, c.options);
    check_result(c.raw, c.devices, c.options, r);
    const double best = brute_force(c.raw, c.devices, c.options);
    if (r.proven) {
      CHECK(r.feasible == std::isfinite(best));
      if (r.feasible) CHECK(r.objective_ms == doctest::Approx(best).epsilon(1e-12));
    } else {
      CHECK_FALSE(c.options.contiguous);  // more than two devices without contiguity: a bound only
      CHECK(r.objective_ms >= best - 1e-9);
      CHECK(r.lower_bound_ms <= best + 1e-9);
      ++unproven;
    }
    ++(r.feasible ? feasible : infeasible);
  }
  CHECK(feasible > 1000);
  CHECK(infeasible > 50);
  CHECK(unproven < 30);
}

TEST_CASE("memory decides at the byte") {
  RawGraph raw;
  for (double bytes : {60.0, 40.0, 50.0}) raw.nodes.push_back({1, 1, bytes, true});
  raw.edges = raw.precedence = {{0, 1}, {1, 2}};
  raw.send_cost = {0, 0, 0};
  PartitionResult fits = solve_partition(raw, {{"gpu", 2, false, 1, 90, true}}, {});
  CHECK(fits.feasible);
  CHECK(fits.parts[0].nodes == std::vector<int>{0});
  PartitionResult not_fits = solve_partition(raw, {{"gpu", 2, false, 1, 89, true}}, {});
  CHECK_FALSE(not_fits.feasible);
  CHECK(not_fits.proven);
  CHECK(not_fits.reason == "no partition keeps every device within its bytes");
  CHECK(solve_partition(raw, {{"gpu", 2, false, 1, 59, true}}, {}).reason.find("32 bytes short") !=
        std::string::npos);
}

TEST_CASE("a graph too wide for its steps still gives a partition and a true bound") {
  std::mt19937 random(3);
  RawGraph raw;
  for (int v = 0; v < 300; ++v) {
    raw.nodes.push_back({1.0 + static_cast<double>(random() % 1000) * 1e-3, 1, 1, true});
    raw.send_cost.push_back(0.01);
    for (int e = 0; e < 2 && v > 20; ++e) {
      int from = static_cast<int>(random() % static_cast<unsigned>(v - 10));
      raw.edges.emplace_back(from, v);
      raw.precedence.emplace_back(from, v);
    }
  }
  PartitionOptions options;
  options.most_steps = 20'000;
  for (int k : {2, 4}) {
    std::vector<DeviceClass> devices{{"gpu", k, false, 1, 1e9, true}};
    PartitionResult r = solve_partition(raw, devices, options);
    REQUIRE(r.feasible);
    check_result(raw, devices, options, r);
    CHECK(r.gap < 0.1);
  }
}
