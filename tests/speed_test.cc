// What explains the speed of devices: published and measured anchors, and what must hold for any
// numbers.

#include "spec/speed_spec.h"

#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "report/perfetto.h"
#include "run/machine.h"
#include "run/time_clock.h"
#include "spec/cluster_spec.h"
#include "support.h"
#include "validate/compare.h"
#include "validate/operator_tables.h"

namespace shardfit {
namespace {

run::Machine machine(const std::string& name, std::int64_t count = 2) {
  spec::DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  Diagnostics faults;
  spec::ClusterSpec cluster;
  const spec::DeviceSpec* device = devices.find(name, faults);
  faults.throw_if_any();
  REQUIRE(device != nullptr);
  cluster.device = *device;
  cluster.count = count;
  return run::machine_of(cluster);
}

double all_reduce_seconds(const run::Machine& m, double bytes, int ranks = 2) {
  return run::collective_seconds(m.speed.collectives.at("all_reduce"), m.link,
                                 CollectiveKind::all_reduce, bytes, ranks);
}

double product(const run::Machine& m, double rows, double columns, double depth) {
  return run::product_seconds(m.speed.products.at("bf16"), m.device, m.device.bf16,
                              {rows, columns, depth, 1, 2, 2});
}

TEST_CASE("a pair's all_reduce of 512 MiB: 1.68 ms on H100, 1.00 ms on B200 (nccl-tests)") {
  CHECK(all_reduce_seconds(machine("h100-sxm"), 512 << 20) ==
        doctest::Approx(1.68e-3).epsilon(0.06));
  CHECK(all_reduce_seconds(machine("b200"), 512 << 20) == doctest::Approx(1.00e-3).epsilon(0.06));
}

TEST_CASE("large bf16 products, as measured (ai-dynamo/aiconfigurator), within 12 %") {
  struct Anchor {
    const char* device;
    double m, n, k, microseconds;
  };
  for (const Anchor& a :
       {Anchor{"a100-80", 8192, 8192, 8192, 4280}, Anchor{"a100-80", 4096, 4096, 4096, 548.9},
        Anchor{"h100-sxm", 8192, 8192, 8192, 1542}, Anchor{"h100-sxm", 32768, 4096, 4096, 1529},
        Anchor{"b200", 8192, 8192, 8192, 651.9}, Anchor{"b200", 32768, 4096, 4096, 666}}) {
    CAPTURE(a.device);
    CAPTURE(a.m);
    CHECK(1e6 * product(machine(a.device), a.m, a.n, a.k) ==
          doctest::Approx(a.microseconds).epsilon(0.12));
  }
}

TEST_CASE("twice the work never takes less time, nor do more bytes, nor a slower link") {
  std::mt19937 random(7);
  for (const char* name : {"a100-80", "h100-sxm", "b200", "l40s", "mi300x", "h100-pcie"}) {
    CAPTURE(name);
    run::Machine m = machine(name);
    const auto& speed = m.speed.products["bf16"];
    for (int i = 0; i < 200; ++i) {
      run::ProductShape shape;
      shape.m = static_cast<double>(1 + random() % 20000);
      shape.n = static_cast<double>(1 + random() % 20000);
      shape.k = static_cast<double>(1 + random() % 20000);
      CAPTURE(shape.m);
      CAPTURE(shape.n);
      CAPTURE(shape.k);
      const double once = run::product_seconds(speed, m.device, m.device.bf16, shape);
      CHECK(once > 0);
      run::ProductShape deeper = shape;
      deeper.k *= 2;
      CHECK(run::product_seconds(speed, m.device, m.device.bf16, deeper) >= once);
      run::ProductShape more = shape;
      more.groups = 2;
      CHECK(run::product_seconds(speed, m.device, m.device.bf16, more) >= once);
      CHECK(run::product_seconds(speed, m.device, m.device.bf16, shape, true) >= once);
    }
    double before = 0;
    for (double bytes = 1024; bytes < 4e9; bytes *= 3) {
      const auto& exchange = m.speed.collectives["all_reduce"];
      const auto seconds = [&](const run::LinkRates& link, int ranks) {
        return run::collective_seconds(exchange, link, CollectiveKind::all_reduce, bytes, ranks);
      };
      CHECK(seconds(m.link, 2) >= before);
      before = seconds(m.link, 2);
      run::LinkRates slower = m.link;
      slower.bytes_per_second /= 2;
      CHECK(seconds(slower, 2) >= before);
      CHECK(seconds(m.link, 4) >= before);
    }
  }
}

TEST_CASE("no exchange is faster than its link") {
  for (const char* name : {"h100-sxm", "b200", "mi300x", "h100-pcie", "rtx4090", "l40s"}) {
    CAPTURE(name);
    const run::Machine m = machine(name);
    for (const CollectiveKind kind :
         {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter}) {
      const auto found = m.speed.collectives.find(collective_name(kind));
      const spec::CollectiveSpeed speed =
          found == m.speed.collectives.end() ? spec::CollectiveSpeed{} : found->second;
      for (double bytes = 1e4; bytes < 1e10; bytes *= 10) {
        const double least = run::bytes_on_link(kind, bytes, 2) / m.link.bytes_per_second;
        CHECK(run::collective_seconds(speed, m.link, kind, bytes, 2) > least);
      }
    }
  }
}

TEST_CASE(
    "every device with sourced rates can be timed; those without measurements are less sure") {
  spec::DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  Diagnostics faults;
  int timed = 0;
  for (const spec::DeviceSpec* device : devices.all(faults)) {
    faults.throw_if_any();
    CAPTURE(device->name);
    spec::ClusterSpec cluster;
    cluster.device = *device;
    const run::Machine m = run::machine_of(cluster);
    if (!m.missing.empty()) continue;
    ++timed;
    const bool measured = device->speed && device->speed->inherits.empty();
    CHECK((measured ? m.interval <= 0.25 : m.interval >= 0.25));
    CHECK(m.device.bandwidth > 0);
  }
  CHECK(timed >= 20);
}

TEST_CASE("without peer access a pair's exchange takes more than twice as long") {
  spec::DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  Diagnostics faults;
  spec::ClusterSpec cluster;
  cluster.device = *devices.find("h100-pcie", faults);
  cluster.count = 2;
  const double with = all_reduce_seconds(run::machine_of(cluster), 1e9);
  cluster.device.link.peer_access = false;
  CHECK(all_reduce_seconds(run::machine_of(cluster), 1e9) > 2 * with);
}

TEST_CASE("faults of a device's speed are found in their place") {
  const auto faults_of = [](const std::string& text) {
    return test::errors_of([&] {
      Diagnostics faults;
      spec::read_speed(spec::read_text(test::source(text, "device.yaml"), faults), faults);
      faults.throw_if_any();
    });
  };
  CHECK(faults_of("products: {bf16: {peak_share: 0.8}}").empty());
  CHECK(faults_of("products: {bf16: {tile_shares: [1, 2]}}").find("2 numbers, not 6") !=
        std::string::npos);
  CHECK(faults_of("products: {bf17: {}}").find("bf17") != std::string::npos);
  CHECK(faults_of("collectives: {all_reduce: {protocols: [{latency: 3}]}}") != "");
  CHECK(faults_of("attention: {flash2: {peak_share: -1}}") != "");
}

TEST_CASE("published steps: the median error is below 10 %, none above 25 % (docs/accuracy.md)") {
  std::vector<double> errors;
  const auto cases = validate::read_cases(SHARDFIT_SOURCE_DIR "/tests/data/validate/steps.yaml");
  for (const validate::CaseResult& result : validate::predict(cases)) {
    CAPTURE(result.id);
    CHECK(result.skipped == "");
    REQUIRE(result.rows.size() == 1);
    CHECK(std::abs(result.rows[0].relative_error()) < 0.25);
    errors.push_back(std::abs(result.rows[0].relative_error()));
  }
  REQUIRE(errors.size() == cases.size());
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 0.10);
}

TEST_CASE("rows of operator tables are predicted; unknown kernels are skipped, bad lines refused") {
  const std::string folder = SHARDFIT_SOURCE_DIR "/tests/data/validate/operators/";
  spec::DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  std::ostringstream json;
  for (const char* file :
       {"gemm/h100_sxm.csv", "attention_forward/a100_sxm.csv", "collectives/b200_sxm.csv"}) {
    CAPTURE(file);
    REQUIRE(validate::is_operator_table(folder + file));
    const auto table = validate::read_operator_table(folder + file);
    const auto errors = validate::compare_operators(table, devices, &json);
    std::vector<float> all;
    for (const auto& set : errors.sets) all.insert(all.end(), set.errors.begin(), set.errors.end());
    CHECK(all.size() + errors.skipped == table.rows.size());
    CHECK(errors.skipped == 0);
    for (float& e : all) e = std::abs(e);
    std::sort(all.begin(), all.end());
    CHECK(static_cast<double>(all[all.size() / 2]) < 0.10);
  }
  CHECK(json.str().find("\"counter\": \"operator_seconds\"") != std::string::npos);
  CHECK_FALSE(validate::is_operator_table(folder + "README.md"));
}

TEST_CASE("a trace for Perfetto names ranks, streams and what ran") {
  Program program;
  program.modules = {"", "model.layers.0"};
  program.instructions = {{Action::compute, 0, 0}};
  Compute c;
  c.kind = "add";
  c.module = 1;
  c.bytes = 1e9;
  program.computes = {c};
  const run::RankProgram rank{&program, {0, 1}};
  const auto result = run::run_time({&rank, 1}, machine("h100-sxm"), {true});
  std::ostringstream out;
  report::write_perfetto(result, {&rank, 1}, out);
  for (const char* part : {"\"traceEvents\":[", "\"ranks 0 1\"", "\"compute\"", "\"ph\":\"X\"",
                           "\"name\":\"add\"", "model.layers.0", "\"dur\":"}) {
    CHECK(out.str().find(part) != std::string::npos);
  }
}

}  // namespace
}  // namespace shardfit
