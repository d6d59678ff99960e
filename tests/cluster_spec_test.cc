#include "spec/cluster_spec.h"

#include <doctest/doctest.h>

#include <set>

#include "spec/data_directory.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::spec;

namespace {

DeviceCatalog shipped() { return DeviceCatalog(SHARDFIT_SOURCE_DIR "/model_specs/devices"); }

const DeviceSpec& device(DeviceCatalog& catalog, const std::string& name) {
  Diagnostics faults;
  const DeviceSpec* found = catalog.find(name, faults);
  faults.throw_if_any();
  REQUIRE_MESSAGE(found != nullptr, name);
  return *found;
}

std::string on_faults(const std::string& text) {
  return test::errors_of([&] {
    DeviceCatalog catalog = shipped();
    Diagnostics faults;
    read_on(word(text, {test::source("--on " + text, "command line"), 5, text.size()}), catalog,
            faults);
    faults.throw_if_any();
  });
}

}  // namespace

TEST_CASE("every shipped device reads without a fault and is called as its file") {
  DeviceCatalog catalog = shipped();
  Diagnostics faults;
  const auto devices = catalog.all(faults);
  CHECK_NOTHROW(faults.throw_if_any());
  CHECK(devices.size() >= 34);
  for (const DeviceSpec* spec : devices) {
    CAPTURE(spec->name);
    CHECK(spec->marketed);
    CHECK_FALSE(spec->compute_capability.empty());
    // What nobody has read from a card carries no usable figure, and the other way round.
    CHECK(spec->usable.has_value() == (spec->confidence != Confidence::unknown));
    if (spec->usable) CHECK_FALSE(spec->usable->source.empty());
    if (spec->bandwidth) CHECK_FALSE(spec->bandwidth->source.empty());
    if (spec->usable && spec->total) CHECK(spec->usable->value <= spec->total->value);
  }
}

TEST_CASE("no two devices share a spelling") {
  DeviceCatalog catalog = shipped();
  Diagnostics faults;
  std::set<std::string> seen;
  for (const DeviceSpec* spec : catalog.all(faults)) {
    std::set<std::string> spellings{spec->name};
    spellings.insert(spec->aliases.begin(), spec->aliases.end());
    for (const std::string& spelling : spellings) {
      CAPTURE(spelling);
      CHECK(&device(catalog, spelling) == spec);
    }
  }
}

TEST_CASE("an H200 has 143,155 MiB for a program, not 141 GB") {
  DeviceCatalog catalog = shipped();
  const DeviceSpec& h200 = device(catalog, "h200");
  CHECK(h200.usable->value == Bytes(143'155LL << 20));
  CHECK(h200.total->value == Bytes(143'771LL << 20));
  CHECK(h200.marketed->value == Bytes(141'000'000'000));
  CHECK(h200.bandwidth->value.value() == 4.8e12);
  CHECK(h200.peak_rates.at("bf16").value.value() == 989e12);
  CHECK(h200.compute_capability == "9.0");
  CHECK(h200.link.per_pair->value.value() == 450e9);
  CHECK(h200.usable_seen.size() == 3);
  CHECK(*h200.price_seen->low_usd_per_hour == 2.25);
}

TEST_CASE("a device answers to its aliases, whatever the case and dashes") {
  DeviceCatalog catalog = shipped();
  for (const char* name :
       {"NVIDIA B200", "b200", "B200", "B200-SXM 180GB", "b200_sxm", "b200-sxm"}) {
    CAPTURE(name);
    CHECK(device(catalog, name).name == "b200");
  }
}

TEST_CASE("COUNTxDEVICE gives count and device") {
  DeviceCatalog catalog = shipped();
  Diagnostics faults;
  const auto pair = read_on(word("2xb200", {}), catalog, faults);
  REQUIRE(pair);
  CHECK(pair->count == 2);
  CHECK(pair->device.name == "b200");
  CHECK(read_on(word("h200", {}), catalog, faults)->count == 1);
  CHECK(faults.empty());
}

TEST_CASE("an unknown device is an error with the nearest name") {
  const std::string shown = on_faults("2xh20O");
  CHECK(shown.find("command line:1:6: error: 'on': unknown device 'h20O'\n"
                   "    --on 2xh20O\n"
                   "         ^~~~~~\n") == 0);
  CHECK(shown.find("did you mean 'h20") != std::string::npos);
  CHECK(on_faults("0xh200").find("is not from 1 to 65,536") != std::string::npos);
  CHECK(on_faults("99999999999999999999xh200").find("is not from 1 to") != std::string::npos);
  CHECK(on_faults("generic-24gb") != "");
  CHECK(on_faults("unknown") != "");
  CHECK(on_faults("2x") != "");
  CHECK(on_faults("x") != "");
  CHECK(on_faults("../devices/h200") != "");
}

TEST_CASE("a device profile adds a device or replaces the shipped one") {
  const char* const text =
      "name: h200\ncompute_capability: '9.0'\ndate: '2026-11-01'\nsource: measured here\n"
      "memory:\n  usable: {value: 140 GiB, samples: 3, driver: '580.1'}\n";
  test::TemporaryFile file(text);
  DeviceCatalog catalog = shipped();
  Diagnostics faults;
  catalog.add_profile(file.path, faults);
  CHECK(faults.empty());
  const DeviceSpec& replaced = device(catalog, "h200");
  CHECK(replaced.usable->value == Bytes(140LL << 30));
  CHECK(replaced.usable->source == "measured here");
  CHECK(replaced.usable->date == "2026-11-01");
  CHECK_FALSE(replaced.bandwidth);
}

TEST_CASE("faults of a device profile have their place") {
  test::TemporaryFile file(
      "name: x1\nconfidence: sure\nmemory:\n  usable: {value: 140, source: a}\n  total: 12 GiB\n"
      "  marketed: {value: 141 GB, sources: b}\npeak_rates: {bf32: {value: 1 TFLOP/s}}\n");
  DeviceCatalog catalog = shipped();
  const std::string shown = test::errors_of([&] {
    Diagnostics faults;
    catalog.add_profile(file.path, faults);
    faults.throw_if_any();
  });
  for (const char* expected :
       {":1:1: error: device 'x1' lacks the key 'compute_capability'", ":2:13: error: ",
        ":4:19: error: 'value' of 'usable' of 'memory' of device 'x1': '140' has no unit",
        ":5:10: error: 'total' of 'memory' of device 'x1': expected a map", "unknown key 'sources'",
        "unknown key 'bf32'"}) {
    CAPTURE(expected);
    CHECK(shown.find(expected) != std::string::npos);
  }
}

TEST_CASE("the data directory is that of the environment, else of the source tree") {
  CHECK(data_directory() == SHARDFIT_SOURCE_DIR "/model_specs");
  setenv("SHARDFIT_DATA", "/elsewhere", 1);
  CHECK(data_directory() == "/elsewhere");
  CHECK(test::errors_of([] { check_data_directory(); }) ==
        "SHARDFIT_DATA: error: '/elsewhere' is not there\n"
        "  expected a folder like model_specs/, with families, models, devices and\n"
        "    frameworks; or leave SHARDFIT_DATA unset\n");
  unsetenv("SHARDFIT_DATA");
}
