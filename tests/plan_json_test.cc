// plan.json: its schema, and that its numbers add up.
#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <fstream>
#include <sstream>

#include "text_test.h"

using rapidjson::Value;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

const std::string root = SHARDFIT_SOURCE_DIR;

/// The part of JSON Schema (draft 7) that docs/plan.schema.json uses. Faults go to `faults`.
class SchemaChecker {
 public:
  explicit SchemaChecker(const Value& schema) : schema_(schema) {}

  void check(const Value& value, const Value& rule, const std::string& path) {
    if (rule.HasMember("$ref")) {
      const std::string ref = rule["$ref"].GetString();
      return check(value, schema_["definitions"][ref.substr(ref.rfind('/') + 1).c_str()], path);
    }
    if (rule.HasMember("anyOf")) {
      for (const Value& choice : rule["anyOf"].GetArray()) {
        SchemaChecker own(schema_);
        own.check(value, choice, path);
        if (own.faults.empty()) return;
      }
      return fault(path, "is none of the choices");
    }
    if (rule.HasMember("enum")) {
      for (const Value& choice : rule["enum"].GetArray()) {
        if (choice == value) return;
      }
      return fault(path, "is no word of the enumeration");
    }
    if (rule.HasMember("type") && !of_type(value, rule["type"].GetString())) {
      return fault(path, std::string("is no ") + rule["type"].GetString());
    }
    if (rule.HasMember("minimum") && value.GetDouble() < rule["minimum"].GetDouble()) {
      fault(path, "is below the minimum");
    }
    if (value.IsObject()) check_object(value, rule, path);
    if (value.IsArray()) check_array(value, rule, path);
  }

  std::vector<std::string> faults;

 private:
  void fault(const std::string& path, const std::string& what) {
    faults.push_back(path + " " + what);
  }

  static bool of_type(const Value& value, const std::string& type) {
    if (type == "object") return value.IsObject();
    if (type == "array") return value.IsArray();
    if (type == "string") return value.IsString();
    if (type == "integer") return value.IsInt64();
    if (type == "number") return value.IsNumber();
    if (type == "boolean") return value.IsBool();
    return type == "null" && value.IsNull();
  }

  void check_object(const Value& value, const Value& rule, const std::string& path) {
    for (const Value& name : rule["required"].GetArray()) {
      if (!value.HasMember(name)) fault(path, std::string("lacks ") + name.GetString());
    }
    for (const auto& member : value.GetObject()) {
      const std::string own = path + "." + member.name.GetString();
      const Value& properties = rule["properties"];
      if (!properties.HasMember(member.name)) {
        fault(own, "is not in the schema");
      } else {
        check(member.value, properties[member.name], own);
      }
    }
  }

  void check_array(const Value& value, const Value& rule, const std::string& path) {
    if (rule.HasMember("minItems") && value.Size() < rule["minItems"].GetUint()) {
      fault(path, "is too short");
    }
    if (rule.HasMember("maxItems") && value.Size() > rule["maxItems"].GetUint()) {
      fault(path, "is too long");
    }
    for (rapidjson::SizeType i = 0; i < value.Size(); ++i) {
      check(value[i], rule["items"], path + "[" + std::to_string(i) + "]");
    }
  }

  const Value& schema_;
};

std::vector<std::string> schema_faults(const Value& plan) {
  rapidjson::Document schema;
  schema.Parse(text_of(root + "/docs/plan.schema.json").c_str());
  REQUIRE(!schema.HasParseError());
  SchemaChecker checker(schema);
  checker.check(plan, schema, "plan");
  return checker.faults;
}

std::int64_t sum_of(const Value& categories) {
  std::int64_t sum = 0;
  CHECK(categories.MemberCount() == 7);
  for (const auto& member : categories.GetObject()) sum += member.value.GetInt64();
  return sum;
}

void check_gpu(const Value& gpu, const std::string& verdict) {
  const auto number = [&](const char* key) { return gpu[key].GetInt64(); };
  CHECK(sum_of(gpu["categories"]) == number("allocated_bytes"));
  CHECK(sum_of(gpu["requested_categories"]) == number("requested_bytes"));
  CHECK(number("requested_bytes") <= number("allocated_bytes"));
  CHECK(number("allocated_bytes") <= number("needed_bytes"));
  CHECK(number("allocated_bytes") <= number("reserved_bytes"));
  CHECK(number("device_bytes") == number("reserved_bytes") + number("context_bytes") +
                                      number("exchange_bytes") + number("stray_bytes"));
  CHECK(number("budget_bytes") == number("usable_bytes") - number("context_bytes") -
                                      number("exchange_bytes") - number("stray_bytes"));
  CHECK(number("headroom_bytes") == number("budget_bytes") - number("needed_bytes"));
  CHECK(gpu["interval_bytes"][0].GetInt64() < number("allocated_bytes"));
  CHECK(gpu["interval_bytes"][1].GetInt64() > number("allocated_bytes"));
  CHECK((number("headroom_bytes") < 0) == (verdict == "does not fit"));
  CHECK(gpu["out_of_memory"].IsObject() == (verdict == "does not fit"));
  std::int64_t most = 0;
  bool named = false;
  for (const Value& phase : gpu["phases"].GetArray()) {
    most = std::max(most, phase["allocated_bytes"].GetInt64());
    CHECK(phase["allocated_bytes"].GetInt64() <= phase["reserved_bytes"].GetInt64());
    named = named || phase["name"] == gpu["worst_phase"];
  }
  CHECK(named);
  CHECK(most == number("allocated_bytes"));
}

void check_plan(const std::string& options, int code, const std::string& verdict) {
  CAPTURE(options);
  const auto result = shardfit::test::run_command(
      "shardfit plan --model " + root + "/examples/01-does-it-fit/config.json --json " + options);
  CHECK(result.code == code);
  rapidjson::Document plan;
  plan.Parse(result.out.c_str());
  REQUIRE(!plan.HasParseError());
  for (const std::string& fault : schema_faults(plan)) FAIL_CHECK(fault);
  for (const Value& option : plan["options"].GetArray()) {
    CHECK(option["verdict"] == Value(verdict.c_str(), static_cast<unsigned>(verdict.size())));
    CHECK(option["gpus"].Size() == option["count"].GetUint());
    for (const Value& gpu : option["gpus"].GetArray()) check_gpu(gpu, verdict);
  }
  CHECK(plan["recommendation"]["option"].IsNull() == (verdict == "does not fit"));
}

}  // namespace

TEST_CASE("plan.json follows its schema and its numbers add up, whether the job fits or not") {
  check_plan("--precision bf16 --micro-batch 1 --sequence 1024 --recompute full --on h200", 0,
             "fits");
  check_plan("--precision bf16 --micro-batch 2 --sequence 1024 --on h200 --on 2xb200", 0, "fits");
  check_plan("--micro-batch 4 --accumulation 2 --sequence 2048 --on h200", 1, "does not fit");
  check_plan(
      "--framework plain-pytorch --precision bf16 --sequence 512 --on h200 --optimizer "
      "adamw-foreach --allocator expandable_segments:True",
      0, "fits");
  check_plan("--precision bf16 --sequence 128 --on 2xb200 --stray-contexts yes", 0, "fits");
  // A search: with a price of memory, stopped, without anything that fits.
  check_plan(
      "--precision bf16 --sequence 8192 --global-batch 4 --micro-batch auto --recompute auto --on "
      "h200",
      0, "fits");
  check_plan("--sequence 2048 --global-batch 2 --micro-batch auto --recompute auto --on h100-sxm",
             1, "does not fit");
  check_plan("--precision bf16 --sequence 1024 --recompute auto --budget 0 --on h200", 0, "fits");
  check_plan("--precision bf16 --on h200 --sequence 512 --explain peak --explain activations", 0,
             "fits");
}

TEST_CASE("the schema's check finds what is wrong") {
  rapidjson::Document plan;
  plan.Parse(R"({"version": "1", "job": {}, "surplus": 1})");
  CHECK(schema_faults(plan).size() > 10);
}
