// Piper's problem: the published solver's optima, and all pipelines of small random graphs.
#include "partition/piper.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>

#include "anchors.h"
#include "partition/variant_choice.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/solver";
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Setting {
  const char* instance;
  int devices;
  double gib;
  int microbatches;
};

PiperInstance with(const Setting& s) {
  PiperInstance p = read_piper(spec::read_source(data + "/piper/" + s.instance + ".json"));
  p.devices = s.devices;
  p.device_bytes = s.gib * (1 << 30);
  p.bandwidth = 25.0 * (1 << 30);
  p.microbatches = s.microbatches;
  return p;
}

/// Every layer once, contiguous, degrees within the devices, in-flight counts of 1F1B, memory kept.
void check_pipeline(const PiperInstance& p, const PiperResult& r) {
  std::vector<int> stage_of(p.nodes.size(), -1);
  int devices = 0, replicas = 0;
  double most = 0;
  for (int i = static_cast<int>(r.stages.size()) - 1; i >= 0; --i) {
    PiperStage stage = r.stages[i];
    devices += stage.tensor_degree * stage.data_degree;
    replicas += stage.data_degree;
    CHECK(p.microbatches % stage.data_degree == 0);
    CHECK(stage.in_flight == (replicas + stage.data_degree - 1) / stage.data_degree);
    measure_stage(p, &stage);
    CHECK(stage.device_bytes <= p.device_bytes);
    CHECK(stage.time_per_sample == r.stages[i].time_per_sample);
    most = std::max(most, stage.time_per_sample);
    for (int v : stage.nodes) {
      CHECK(stage_of[v] == -1);
      stage_of[v] = i;
    }
  }
  CHECK(devices <= p.devices);
  CHECK(replicas <= p.microbatches);
  CHECK(most == r.objective);
  for (int s : stage_of) CHECK(s >= 0);
  for (const PiperInstance::Edge& e : p.edges) CHECK(stage_of[e.source] <= stage_of[e.destination]);
}

/// Tries everything: for the layers not placed yet every last stage, degree and variant.
double brute_force(const PiperInstance& p, unsigned left, int devices, int replicas) {
  if (left == 0) return 0;
  double best = infinity;
  const int n = static_cast<int>(p.nodes.size());
  for (unsigned part = left; part != 0; part = (part - 1) & left) {
    bool closed = true;  // no edge from the stage to what stays before it
    for (const PiperInstance::Edge& e : p.edges)
      closed = closed && !((part >> e.source & 1) && (left >> e.destination & 1) &&
                           !(part >> e.destination & 1));
    if (!closed) continue;
    for (std::size_t t = 0; t < p.tensor_degrees.size(); ++t)
      for (int d = 1; p.tensor_degrees[t] * d <= devices; ++d) {
        if (p.microbatches % d != 0 || replicas + d > p.microbatches) continue;
        PiperStage stage;
        stage.tensor_degree = p.tensor_degrees[t];
        stage.data_degree = d;
        stage.in_flight = (replicas + d + d - 1) / d;
        for (int v = 0; v < n; ++v)
          if (part >> v & 1) stage.nodes.push_back(v);
        stage.variants.assign(stage.nodes.size(), 0);
        double fastest = infinity;
        std::function<void(std::size_t)> choose = [&](std::size_t i) {
          if (i == stage.nodes.size()) {
            measure_stage(p, &stage);
            if (stage.device_bytes <= p.device_bytes)
              fastest = std::min(fastest, stage.time_per_sample);
            return;
          }
          const int offered = static_cast<int>(p.nodes[stage.nodes[i]].variants[t].size());
          for (stage.variants[i] = 0; stage.variants[i] < offered; ++stage.variants[i])
            choose(i + 1);
        };
        choose(0);
        if (fastest >= best) continue;
        const double before =
            brute_force(p, left & ~part, devices - stage.tensor_degree * d, replicas + d);
        best = std::min(best, std::max(fastest, before));
      }
  }
  return best;
}

PiperInstance random_instance(std::mt19937& random) {
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  PiperInstance p;
  const int n = 1 + pick(4);
  p.nodes.resize(n);
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      if (pick(2) != 0) continue;
      p.nodes[a].outgoing.push_back(static_cast<int>(p.edges.size()));
      p.nodes[b].incoming.push_back(static_cast<int>(p.edges.size()));
      p.edges.push_back({a, b, static_cast<double>(pick(4))});
    }
  p.tensor_degrees = pick(2) ? std::vector<int>{1, 2} : std::vector<int>{1};
  for (PiperInstance::Node& node : p.nodes) {
    const bool free = pick(5) == 0;
    for (std::size_t t = 0; t < p.tensor_degrees.size(); ++t) {
      std::vector<PiperInstance::Variant>& list = node.variants.emplace_back();
      for (int v = t == 0 || pick(5) != 0 ? 1 + pick(3) : 0; v > 0; --v) {
        PiperInstance::Variant x;
        if (!free)
          x = {"v",
               static_cast<double>(pick(8)),
               static_cast<double>(pick(4)),
               static_cast<double>(pick(4)),
               static_cast<double>(pick(5)),
               {},
               {}};
        for (std::size_t e = 0; e < node.incoming.size(); ++e)
          x.sync_in.push_back(free ? 0 : pick(3) == 0);
        for (std::size_t e = 0; e < node.outgoing.size(); ++e)
          x.sync_out.push_back(free ? 0 : pick(3) == 0);
        list.push_back(x);
      }
    }
  }
  p.devices = 1 + pick(4);
  p.device_bytes = 3 + pick(14);
  p.bandwidth = 1 + pick(6);
  p.microbatches = 1 + pick(6);
  return p;
}

}  // namespace

TEST_CASE("Piper: the published settings, equal or better and proven") {
  const std::vector<Setting> settings{{"bert32a100", 2, 80, 8},
                                      {"bert32a100", 8, 8, 480},
                                      {"resnet", 2, 16, 7680},
                                      {"gnmt", 2, 2.5, 256}};
  std::size_t row = 0;
  for (const test::Anchor& a : test::read_anchors(data)) {
    if (a.set != "piper") continue;
    REQUIRE(row < settings.size());
    const Setting& setting = settings[row++];
    REQUIRE(a.instance == setting.instance);
    CAPTURE(a.instance);
    PiperInstance p = with(setting);
    PiperResult r = solve_piper(p, {});
    REQUIRE(r.feasible);
    CHECK(r.proven);
    CHECK(r.gap == 0);
    check_pipeline(p, r);
    // The published solver gives no answer for gnmt.
    if (!a.optimum.empty())
      CHECK(std::stod(test::digits_of(r.objective, a.digits)) <= std::stod(a.optimum));
  }
  CHECK(row == settings.size());
}

TEST_CASE("pipelines of random graphs cost what all pipelines cost at best") {
  std::mt19937 random(11);
  int feasible = 0, infeasible = 0;
  for (unsigned seed = 0; seed < test::fuzz_rounds(2000); ++seed) {
    CAPTURE(seed);
    PiperInstance p = random_instance(random);
    PiperResult r = solve_piper(p, {});
    const double best = brute_force(p, (1U << p.nodes.size()) - 1, p.devices, 0);
    CHECK(r.proven);
    CHECK(r.feasible == std::isfinite(best));
    ++(r.feasible ? feasible : infeasible);
    if (!r.feasible) continue;
    CHECK(r.objective == doctest::Approx(best).epsilon(1e-12));
    check_pipeline(p, r);
  }
  CHECK(feasible > 500);
  CHECK(infeasible > 100);
}

TEST_CASE("one variant a layer: equal to trying all, equal layers or not") {
  std::mt19937 random(2);
  for (unsigned seed = 0; seed < test::fuzz_rounds(3000); ++seed) {
    CAPTURE(seed);
    auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<std::vector<VariantCost>> layers;
    for (int n = 1 + pick(6); n > 0; --n) {
      if (!layers.empty() && pick(2)) {
        layers.push_back(layers.back());
        continue;
      }
      layers.emplace_back();
      for (int v = 1 + pick(3); v > 0; --v)
        layers.back().push_back({static_cast<double>(pick(9)), static_cast<double>(pick(9))});
    }
    const double cap = pick(40);
    double best = infinity;
    std::vector<std::size_t> at(layers.size(), 0);
    for (bool more = true; more;) {
      double time = 0, bytes = 0;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        time += layers[i][at[i]].time;
        bytes += layers[i][at[i]].bytes;
      }
      if (bytes <= cap) best = std::min(best, time);
      std::size_t i = 0;
      while (i < at.size() && ++at[i] == layers[i].size()) at[i++] = 0;
      more = i < at.size();
    }
    VariantChoice c = choose_variants(layers, cap, -infinity, infinity);
    CHECK(c.feasible == std::isfinite(best));
    CHECK(c.exact);
    if (!c.feasible) continue;
    CHECK(c.time == best);
    CHECK(c.bound == best);
    double time = 0, bytes = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      time += layers[i][c.pick[i]].time;
      bytes += layers[i][c.pick[i]].bytes;
    }
    CHECK(time == c.time);
    CHECK(bytes <= cap);
  }
}
