#pragma once
// `shardfit plan --json`, run and read.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <string>

#include "text_test.h"

namespace shardfit::test {

inline rapidjson::Document plan_document(const std::string& arguments) {
  rapidjson::Document plan;
  const auto result = run_command("shardfit plan " + arguments + " --json");
  CAPTURE(result.err);
  plan.Parse(result.out.c_str());
  REQUIRE(!plan.HasParseError());
  return plan;
}

}  // namespace shardfit::test
