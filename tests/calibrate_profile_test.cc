// The device profile: written from findings, read by the planner, the same numbers.
#include <doctest/doctest.h>

#include <fstream>

#include "calibrate/benchmarks.h"
#include "calibrate/profile.h"
#include "calibrate_support.h"
#include "run/machine.h"
#include "spec/cluster_spec.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using namespace shardfit::calibrate;

namespace {

/// What a card might say; round numbers nowhere, so that a lost digit shows.
Findings made_up() {
  Findings f;
  DeviceFacts facts;
  facts.name = "NVIDIA H200";
  facts.compute_capability = "9.0";
  facts.usable_bytes = 150'123'456'789;
  f.machine.devices.push_back(facts);
  f.machine.driver = "580.95.05";
  f.machine.runtime = "13.0";
  f.machine.clocks = "SM 1980 MHz, memory 3201 MHz at most";
  const auto add = [&](const char* benchmark, const std::string& name, Unit unit, double value,
                       double work = 0, const char* stopped = "steady") {
    Reading r = once(benchmark, name, unit, value, "made up");
    r.value.samples = 12;
    r.value.spread = 0.0123;
    r.value.stopped = stopped;
    r.work = work;
    f.readings.push_back(r);
  };
  add("context", "usable", Unit::bytes, 150'123'456'789.0);
  add("context", "multiprocessors", Unit::count, 131);
  add("context", "context of this process", Unit::bytes, 587'202'561.0);
  add("launch", "launches in a row", Unit::seconds, 2.3456789e-6);
  add("launch", "kernel in a graph", Unit::seconds, 1.2345678e-6);
  add("device-copy", "copy latency", Unit::seconds, 3.1415926535e-6, 0, "fit");
  add("device-copy", "copy bandwidth", Unit::bytes_per_second, 4.1234567890123e12, 0, "fit");
  add("peer-copy", "0 to 1, peer access bandwidth", Unit::bytes_per_second, 4.0123e11, 0, "fit");
  add("peer-copy", "0 to 1, peer access latency", Unit::seconds, 9.87e-6, 0, "fit");
  const double flops = 2.0 * 4096 * 4096 * 4096;
  add("gemm", "bf16 4096x4096x4096", Unit::seconds, flops / 7.1234e14, flops);
  add("gemm", "bf16 16x4096x4096", Unit::seconds, 4e-6, 2.0 * 16 * 4096 * 4096);
  add("blas-handle", "second handle and product", Unit::bytes, 8'400'001);
  add("communicator", "communicator of 2 ranks", Unit::bytes, 12'582'913);
  add("communicator", "first all_reduce", Unit::bytes, 400'000'003);
  add("communicator", "first all_gather", Unit::bytes, 5);
  add("communicator", "first reduce_scatter", Unit::bytes, -2'097'152);  // somebody else's memory
  add("communicator", "first all_to_all", Unit::bytes, 90'000'007);
  add("communicator", "first send", Unit::bytes, 0);
  add("collective", "all_reduce all 2 latency", Unit::seconds, 17.5e-6, 0, "fit");
  add("collective", "all_reduce all 2 bandwidth", Unit::bytes_per_second, 3.21e11, 0, "fit");
  add("collective", "send all 2 latency", Unit::seconds, 9.5e-6, 0, "fit");
  add("collective", "send all 2 bandwidth", Unit::bytes_per_second, 2.22e11, 0, "fit");
  add("attention", attention_cases(facts, 1, {}).front().name, Unit::seconds, 1.234e-3, 1e9);
  f.readings.back().method =
      "our own kernel on fp32 units: a lower bound for a library's fused one";
  return f;
}

spec::Node base_file() {
  Diagnostics faults;
  spec::Node node = spec::read_file(SHARDFIT_SOURCE_DIR "/model_specs/devices/h200.yaml", faults);
  faults.throw_if_any();
  return node;
}

spec::DeviceSpec read_back(const std::string& text) {
  Diagnostics faults;
  const spec::DeviceSpec device =
      spec::read_device(spec::read_text(test::source(text, "profile.yaml"), faults), faults);
  faults.throw_if_any();
  return device;
}

}  // namespace

TEST_CASE("profile: what was measured reads back as the same numbers, the rest is the file's") {
  const spec::Node base = base_file();
  const std::string text = yaml_text(device_profile(made_up(), &base, "h200", "2026-11-30"));
  CAPTURE(text);
  const spec::DeviceSpec device = read_back(text);
  const spec::DeviceSpec before = read_back(yaml_text(base));
  CHECK(device.usable->value == Bytes(150'123'456'789));
  CHECK(device.usable->source ==
        "shardfit-calibrate on NVIDIA H200, CUDA 13.0, driver 580.95.05, 2026-11-30");
  CHECK(device.usable->date == "2026-11-30");
  CHECK(device.multiprocessors->value == 131);
  REQUIRE(device.measured.has_value());
  CHECK(device.measured->context == Bytes(587'202'561));
  CHECK(device.measured->launch->value() == 2.3456789e-6);
  CHECK(device.measured->blas_handle == Bytes(8'400'001));
  REQUIRE(device.measured->exchange.size() == 1);
  CHECK(device.measured->exchange[0].ranks == 2);
  CHECK(device.measured->exchange[0].communicator == Bytes(12'582'913));
  CHECK(device.measured->exchange[0].rings == Bytes(400'000'008));
  CHECK(device.measured->exchange[0].pairs == Bytes(90'000'007));
  REQUIRE(device.measured->attention.size() == 1);
  CHECK(device.measured->attention[0].time.value() == 1.234e-3);
  CHECK(device.measured->attention[0].name.starts_with("lower bound, "));
  CHECK(device.measured->attention[0].method.find("own kernel") != std::string::npos);
  REQUIRE(device.measured->times.size() == 2);
  CHECK(device.measured->times[0].k == 4096);
  CHECK(device.measured->times[0].time.value() == 2.0 * 4096 * 4096 * 4096 / 7.1234e14);
  REQUIRE(device.measured->lines.size() == 4);
  CHECK(device.measured->lines[0].name == "device-copy, copy");
  CHECK(device.measured->lines[0].latency.value() == 3.1415926535e-6);
  CHECK(device.measured->lines[0].bandwidth.value() == 4.1234567890123e12);
  CHECK(device.measured->lines[0].residual == 0.0123);
  CHECK(device.measured->lines[0].points == 12);
  REQUIRE(device.measured->products.size() == 2);
  CHECK(device.measured->products[0].shape == "tiny");
  CHECK(device.measured->products[1].share == doctest::Approx(7.1234e14 / 989e12).epsilon(1e-12));
  CHECK(device.achieved_matmul_share_bf16->value == device.measured->products[1].share);
  CHECK(device.link.peer_access == true);
  REQUIRE(device.speed.has_value());
  CHECK(device.speed->memory_share == 4.1234567890123e12 / 4800e9);
  CHECK(device.speed->kernel_seconds == 1.2345678e-6);
  // Not measured, so as it was: peaks, links, fitted speeds.
  CHECK(device.peak_rates.at("bf16").value == before.peak_rates.at("bf16").value);
  CHECK(device.bandwidth->value == before.bandwidth->value);
  CHECK(device.link.per_pair->value == before.link.per_pair->value);
  CHECK(device.speed->products.at("bf16").peak_share ==
        before.speed->products.at("bf16").peak_share);
  CHECK(device.caveats == before.caveats);
  CHECK(device.aliases == before.aliases);
}

TEST_CASE("profile: a tree written as YAML and read again is written the same") {
  const spec::Node base = base_file();
  const std::string text = yaml_text(device_profile(made_up(), &base, "h200", "2026-11-30"));
  Diagnostics faults;
  CHECK(yaml_text(spec::read_text(test::source(text), faults)) == text);
  CHECK(faults.empty());
}

TEST_CASE("profile: a device that no file knows is made of what was measured") {
  const std::string text = yaml_text(device_profile(made_up(), nullptr, "mine", "2026-11-30"));
  CAPTURE(text);
  const spec::DeviceSpec device = read_back(text);
  CHECK(device.name == "mine");
  CHECK(device.bandwidth->value.value() == 4.1234567890123e12);
  CHECK(device.peak_rates.at("bf16").value.value() == doctest::Approx(7.1234e14));
  CHECK(device.link.per_pair->value.value() == 4.0123e11);
  CHECK(device.speed->memory_share == doctest::Approx(1));
}

TEST_CASE("profile: the planner takes it, and says so") {
  const spec::Node base = base_file();
  const test::TemporaryFile file(yaml_text(device_profile(made_up(), &base, "h200", "2026-11-30")),
                                 "h200.yaml");
  const std::string job =
      "shardfit plan --model " SHARDFIT_SOURCE_DIR
      "/tests/data/models/gpt2.json --framework plain-pytorch --precision bf16 --on h200 --json";
  const auto with = test::run_command(job + " --device-profile " + file.path);
  CHECK(with.err == "");
  CHECK(with.out.find("\"usable_bytes\": 150123456789") != std::string::npos);
  CHECK(with.out.find("\"context_interval_bytes\": [595602562, 805306368]") != std::string::npos);
  CHECK(with.out.find("at least the bare context and the handle of cuBLAS that shardfit-calibrate "
                      "on NVIDIA H200") != std::string::npos);
  CHECK(test::run_command(job).out.find("150123456789") == std::string::npos);
}

TEST_CASE("profile: a plan on two cards takes what NCCL was seen to take, and says so") {
  const spec::Node base = base_file();
  const test::TemporaryFile file(yaml_text(device_profile(made_up(), &base, "h200", "2026-11-30")),
                                 "h200.yaml");
  const std::string job = "shardfit plan --model " SHARDFIT_SOURCE_DIR
                          "/tests/data/models/gpt2.json --framework plain-pytorch --precision bf16 "
                          "--parallel ddp --json --device-profile " +
                          file.path;
  const auto two = test::run_command(job + " --on 2xh200");
  CHECK(two.err == "");
  for (const char* words :
       {"\"exchange_interval_bytes\": [412582921, 502582928]",
        "a communicator of 2 ranks with its first exchanges, without and with those of pairs, as "
        "shardfit-calibrate on NVIDIA H200, CUDA 13.0, driver 580.95.05, 2026-11-30 found",
        "2026-11-30: launches of 2.35 us, bf16 products in ", "all_reduce at 321 GB/s"}) {
    CAPTURE(words);
    CHECK(two.out.find(words) != std::string::npos);
  }
  // Four ranks were not measured: the table's figures, and no rates of exchanges.
  const auto four = test::run_command(job + " --on 4xh200");
  CHECK(four.out.find("\"exchange_interval_bytes\": [536870912, 1610612736]") != std::string::npos);
  CHECK(four.out.find("launches of 2.35 us") != std::string::npos);
  CHECK(four.out.find("all_reduce at") == std::string::npos);
}

TEST_CASE("profile: bytes that no card has are refused, not added up to fewer") {
  spec::Node base = base_file();
  const std::string text = yaml_text(base);
  for (const char* bytes : {"  context: 8000 PiB\n  blas_handle: 8000 PiB\n",
                            "  exchange:\n    - {ranks: 2, communicator: 8000 PiB, rings: 1 B, "
                            "pairs: 8000 PiB}\n"}) {
    CAPTURE(bytes);
    const test::TemporaryFile file(text + "measured:\n  source: 'nobody'\n" + bytes, "h200.yaml");
    const auto plan = test::run_command(
        "shardfit plan --model " SHARDFIT_SOURCE_DIR
        "/tests/data/models/gpt2.json --framework plain-pytorch --parallel ddp --on 2xh200 "
        "--device-profile " +
        file.path);
    CHECK(plan.code == 2);
  }
}

TEST_CASE("profile: measured times take the place of fitted ones") {
  const spec::Node base = base_file();
  spec::ClusterSpec cluster;
  cluster.count = 2;
  cluster.device = read_back(yaml_text(base));
  const run::Machine before = run::machine_of(cluster);
  cluster.device = read_back(yaml_text(device_profile(made_up(), &base, "h200", "2026-11-30")));
  const run::Machine after = run::machine_of(cluster);
  CHECK(after.host.launch_seconds == 2.3456789e-6);
  CHECK(after.host.operator_seconds == before.host.operator_seconds);
  Compute product;
  product.kind = "mm";
  product.dtype = DType::bf16;
  product.m = product.n = product.k = 4096;
  const double predicted = run::product_seconds(after.speed.products.at("bf16"), after.device,
                                                after.device.bf16, {4096, 4096, 4096});
  const double factor = 2.0 * 4096 * 4096 * 4096 / 7.1234e14 / predicted;
  run::Machine fitted = after;
  fitted.speed.product_scale.clear();
  const auto seconds = [&](const run::Machine& machine) {
    return run::OperatorTimes(machine.speed, machine.device, 9).seconds(product);
  };
  CHECK(seconds(after) == doctest::Approx(factor * seconds(fitted)).epsilon(1e-12));
  CHECK(factor != doctest::Approx(1));
  product.dtype = DType::f32;  // no product of it was measured
  CHECK(seconds(after) == seconds(fitted));
  for (const double bytes : {1e3, 1e6, 1e9}) {
    const auto exchange = [&](const char* name, CollectiveKind kind) {
      return run::collective_seconds(after.speed.collectives.at(name), after.link, kind, bytes, 2);
    };
    CHECK(exchange("all_reduce", CollectiveKind::all_reduce) ==
          doctest::Approx(17.5e-6 + bytes / 3.21e11).epsilon(1e-12));
    CHECK(exchange("send", CollectiveKind::send) ==
          doctest::Approx(9.5e-6 + bytes / 2.22e11).epsilon(1e-12));
  }
  // A line of another number of ranks is not taken.
  cluster.count = 4;
  CHECK(run::machine_of(cluster).speed.collectives.count("send") == 0);
  CHECK(run::measured_words(cluster).find("all_reduce") == std::string::npos);
}

TEST_CASE("profile: findings of a stand-in make none") {
  Findings findings = made_up();
  findings.machine.stand_in = true;
  CHECK_THROWS_AS(device_profile(findings, nullptr, "x", "2026-11-30"), std::logic_error);
#ifdef SHARDFIT_CUDA
  const auto run = test::run_calibrate(
      "run --quick --only context --profile h200.yaml; ls h200.yaml", {.device = "h200"});
  CHECK(run.err.find("h200.yaml is not written: nothing was measured on a stand-in") !=
        std::string::npos);
  CHECK(run.err.find("No such file") != std::string::npos);
#endif
}

TEST_CASE("profile: what would keep it from being written is said before a card is measured") {
  Machine machine;
  machine.devices.resize(2);
  machine.devices[0].name = "NVIDIA H200";
  machine.devices[0].compute_capability = "9.0";
  machine.devices[1].name = "NVIDIA Something";
  const auto said = [&](const std::string& path, const std::string& name, int device) {
    try {
      check_profile(path, name, machine, device);
      return std::string();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  const test::TemporaryFile there("", "there.yaml");
  const std::string folder = there.path.substr(0, there.path.rfind('/'));
  CHECK(said(there.path, "", 0) == "");
  CHECK(said(folder + "/new.yaml", "", 0) == "");
  CHECK(said(there.path, "mine", 1) == "");
  CHECK(said(there.path, "", 1).find("no device NVIDIA Something; give the profile a name") !=
        std::string::npos);
  for (const std::string& path : {folder, folder + "/nowhere/new.yaml"}) {
    CAPTURE(path);
    CHECK(said(path, "", 0).find("the file cannot be written") != std::string::npos);
  }
#ifdef SHARDFIT_CUDA
  const auto run =
      test::run_calibrate("run --quick --only context --profile no/h200.yaml", {.device = "h200"});
  CHECK(run.code == 2);
  CHECK(run.out == "");
  CHECK(run.err == "no/h200.yaml: error: the file cannot be written\n");
#endif
}

TEST_CASE("profile: the catalogue knows a card by the name its driver gives") {
  DeviceFacts facts;
  facts.name = "NVIDIA H200";
  facts.compute_capability = "9.0";
  CHECK(catalogue_file(facts).ends_with("/devices/h200.yaml"));
  facts.compute_capability = "8.0";
  CHECK(catalogue_file(facts) == "");
  facts.name = "NVIDIA Something";
  CHECK(catalogue_file(facts) == "");
}
