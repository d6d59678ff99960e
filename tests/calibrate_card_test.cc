// Everything for a card in one command: calibrate/on_a_card.py, on the stand-in and on none.
#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include "calibrate_support.h"

using namespace shardfit::test;

namespace {

bool has_python() { return shell("python3 --version").code == 0; }

ProgramResult on_a_card(const std::string& arguments) {
  // A preloaded stand-in comes before a sanitizer's runtime.
  return shell(
      "export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0; python3 "
      "" SHARDFIT_SOURCE_DIR
      "/calibrate/on_a_card.py --no-build --build "
      "" SHARDFIT_BINARY_DIR " " +
      arguments);
}

}  // namespace

TEST_CASE("on_a_card: a dry run says every step with bytes and seconds; without a card it waives") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult dry = on_a_card("--dry-run --on 2xh200 --cards 2");
  CHECK(dry.code == 2);  // --on is one device, --cards how many
  const ProgramResult two = on_a_card("--dry-run --on b200 --cards 2 --jobs gpt2 gpt2-ddp");
  CHECK(two.err == "");
  CHECK(two.code == 0);
  CHECK(two.out.find("waived here: ") == 0);
  for (const char* words : {"calibrate run --quick ", "gpt2-ddp ", "on each of 2: fits",
                            "near-capacity", "in all some"}) {
    CAPTURE(words);
    CHECK(two.out.find(words) != std::string::npos);
  }
  const ProgramResult none = on_a_card("--out results");
  CHECK(none.code == 4);
  CHECK(none.err.find("waived: ") == 0);
  CHECK(on_a_card("--dry-run --jobs gpt3").err.find("unknown job gpt3") == 0);
}

#ifdef SHARDFIT_CUDA

TEST_CASE("on_a_card: on the stand-in every job is planned, confirmed, and its limits are met") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult run = on_a_card(
      "--out results --no-trial --jobs gpt2 gpt2-ddp --device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under '" SHARDFIT_BINARY_DIR
      "/shardfit-stand-in 2xh200'; e=$?; cat results/summary.json >&2; exit $e");
  CAPTURE(run.out);
  CHECK(run.code == 0);
  CHECK(run.out.find("ON A STAND-IN RUNTIME WITHOUT A CARD") != std::string::npos);
  CHECK(run.out.find("| gpt2-ddp, 2 cards | - | - | - | confirmed | - |") != std::string::npos);
  CHECK(run.out.find("refused by the plan and, before anything was allocated, by confirm") !=
        std::string::npos);
  rapidjson::Document summary;
  summary.Parse(run.err.c_str());
  REQUIRE_FALSE(summary.HasParseError());
  CHECK(summary["stand_in"].GetBool());
  CHECK(summary["right"].GetBool());
  REQUIRE(summary["jobs"].Size() == 4);
  const auto& near = summary["jobs"][2];
  CHECK(near["fits"].GetBool());
  CHECK(near["share"].GetDouble() >= 0.97);
  CHECK(near["share"].GetDouble() <= 0.985);
  CHECK(summary["jobs"][3]["refused_by_plan"].GetBool());
  CHECK(summary["jobs"][3]["refused_by_confirm"].GetBool());
}

TEST_CASE(
    "on_a_card: a card that refuses memory in the middle is off, and the other jobs still run") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult run = on_a_card(
      "--out results --no-trial --no-near --jobs gpt2 vit-base "
      "--device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under 'env SHARDFIT_STAND_IN_FAIL=cudaMalloc:15:2:1000000 "
      "" SHARDFIT_BINARY_DIR "/shardfit-stand-in h200'");
  CAPTURE(run.out);
  CHECK(run.code == 1);
  CHECK(run.out.find("the device refused what the allocator counted on") != std::string::npos);
  CHECK(run.out.find("| vit-base |") != std::string::npos);
  CHECK(run.out.find("OFF: see above") != std::string::npos);
}

#endif
