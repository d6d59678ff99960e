#pragma once
// `shardfit plan --json`, run and read, and a card to run it for.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <cstdint>
#include <string>

#include "support.h"
#include "text_test.h"

namespace shardfit::test {

inline rapidjson::Document plan_document(const std::string& arguments) {
  rapidjson::Document plan;
  const auto result = run_command("shardfit plan " + arguments + " --json");
  CAPTURE(result.err);
  plan.Parse(result.out.c_str());
  REQUIRE(!plan.HasParseError());
  REQUIRE(plan.HasMember("options"));
  return plan;
}

/// A profile of a device "card" of so many MiB.
inline TemporaryFile card(std::int64_t mebibytes) {
  return TemporaryFile(
      "name: card\ngpu: card\nsource: made up\nconfidence: assumed\ncompute_capability: '9.0'\n"
      "multiprocessors: {value: 132}\n"
      "memory: {usable: {value: " +
      std::to_string(mebibytes) +
      " MiB}, bandwidth: {value: 2000 GB/s}}\n"
      "peak_rates: {bf16: {value: 400 TFLOP/s}, fp32: {value: 40 TFLOP/s}}\n"
      "link: {per_gpu: {value: 100 GB/s}, per_pair: {value: 100 GB/s}}\n");
}

}  // namespace shardfit::test
