// What is uneven between GPUs: its cause, its cost and the fix, each of a plan that was made for
// it.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <string>

#include "plan_document.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using rapidjson::Value;

namespace {

rapidjson::Document plan_of(const std::string& arguments) {
  rapidjson::Document plan = test::plan_document(arguments);
  REQUIRE(plan.HasMember("options"));
  return plan;
}

/// An 8B in four stages.
rapidjson::Document stages(const std::string& more, const std::string& on = "4xh200") {
  return plan_of("--model llama-3-8b --framework megatron --pp 4 --on " + on + " " + more);
}

const Value* find(const rapidjson::Document& plan, const std::string& kind) {
  for (const Value& one : plan["options"][0]["imbalances"].GetArray()) {
    if (one["kind"] == kind.c_str()) return &one;
  }
  return nullptr;
}

std::string text(const Value& one, const char* key) { return one[key].GetString(); }

bool has(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

std::int64_t most_needed(const rapidjson::Document& plan) {
  std::int64_t most = 0;
  for (const Value& gpu : plan["options"][0]["gpus"].GetArray()) {
    most = std::max(most, gpu["needed_bytes"].GetInt64());
  }
  return most;
}

}  // namespace

TEST_CASE("the last stage's share of parameters and states: the head is the cause, and a fix") {
  const auto plan = stages("--accumulation 8");
  const Value* share = find(plan, "share");
  REQUIRE(share != nullptr);
  CHECK((*share)["gpu"].GetInt() == 3);
  CHECK(text(*share, "cause").starts_with("the head with its gradients and states"));
  // Activations of a peak in another phase are not compared.
  CHECK(!has(text(*share, "what"), "activations"));
  REQUIRE((*share)["fix"].IsObject());
  const Value& gpu = plan["options"][0]["gpus"][3]["categories"];
  const std::int64_t held = gpu["parameters"].GetInt64() + gpu["gradients"].GetInt64() +
                            gpu["optimizer_states"].GetInt64();
  CHECK((*share)["fix"]["held_bytes"].GetInt64() < held);
  CHECK((*share)["fix"]["needed_bytes"].GetInt64() <= most_needed(plan));
}

TEST_CASE("from how much more on an imbalance is named is the person's to say") {
  const auto count = [](const std::string& more) {
    const auto plan = stages("--accumulation 8 " + more);
    return plan["options"][0]["imbalances"].Size();
  };
  const auto usual = count("");
  CHECK(usual > 0);
  CHECK(count("--imbalance 0.1") == usual);
  CHECK(count("--imbalance 5") == 0);
  const test::TemporaryFile plan(
      "model: llama-3-8b\njob: {framework: megatron, pp: 4, accumulation: 8}\n"
      "options: [{on: 4xh200}]\nimbalance: 5\n");
  CHECK(plan_of(plan.path)["options"][0]["imbalances"].Empty());
}

TEST_CASE("GPUs of one stage are named once, and each stage that is named has cause and fix") {
  const auto plan = stages("--accumulation 8 --parallel tensor --tp 2", "8xh200");
  const Value& imbalances = plan["options"][0]["imbalances"];
  REQUIRE(imbalances.Size() >= 2);
  for (const Value& one : imbalances.GetArray()) {
    CAPTURE(text(one, "what"));
    CHECK(text(one, "cause") != "");
    CHECK(one["fix"].IsObject());
    if (&one == &imbalances[0] || text(one, "kind") == "time") continue;
    CHECK(one["gpu"].GetInt() / 2 != imbalances[0]["gpu"].GetInt() / 2);
  }
}

TEST_CASE("stages of two chunks: the head is why the last one computes more, 1f1b evens it out") {
  const auto plan = stages("--accumulation 32 --schedule interleaved-1f1b");
  const Value* time = find(plan, "time");
  REQUIRE(time != nullptr);
  CHECK((*time)["gpu"].GetInt() == 3);
  CHECK(has(text(*time, "cause"), "the head and the loss"));
  REQUIRE((*time)["fix"].IsObject());
  const std::string words = text((*time)["fix"], "words");
  CAPTURE(words);
  const std::string key = "schedule 1f1b, stage-layers ";
  REQUIRE(words.starts_with(key));
  const std::string layers = words.substr(key.size(), words.find(' ', key.size()) - key.size());
  const auto fixed = stages("--accumulation 32 --stage-layers " + layers);
  CHECK(fixed["options"][0]["step_seconds"] == (*time)["fix"]["step_seconds"]);
  CHECK(fixed["options"][0]["step_seconds"].GetDouble() <
        plan["options"][0]["step_seconds"].GetDouble());
}

TEST_CASE("gpipe: logits of all passes in flight are the cause, though the job does not fit") {
  const auto plan = stages("--accumulation 32 --schedule gpipe");
  REQUIRE(plan["options"][0]["verdict"] == "does not fit");
  const Value* memory = find(plan, "memory");
  REQUIRE(memory != nullptr);
  CHECK((*memory)["gpu"].GetInt() == 3);
  CHECK(text(*memory, "cause")
            .starts_with(
                "the schedule (gpipe) holds 32 passes in flight there, each with logits and loss"));
  REQUIRE((*memory)["fix"].IsObject());
  CHECK((*memory)["fix"]["verdict"] == "fits");
  CHECK(find(plan, "time") == nullptr);  // there is no step to shorten
}

TEST_CASE("layers that were given unevenly are the cause, and a better cut the fix") {
  const auto plan = stages("--accumulation 8 --stage-layers 4,6,16,6");
  const Value* memory = find(plan, "memory");
  REQUIRE(memory != nullptr);
  CHECK((*memory)["gpu"].GetInt() == 2);
  CHECK(text(*memory, "cause").starts_with("16 layers instead of 6, as stage-layers says"));
  CHECK(text((*memory)["fix"], "words").starts_with("stage-layers "));
  CHECK((*memory)["fix"]["needed_bytes"].GetInt64() < most_needed(plan));
  const Value* time = find(plan, "time");
  REQUIRE(time != nullptr);
  CHECK(text(*time, "cause") == "16 layers instead of 4, as stage-layers says");
}

TEST_CASE("DataParallel: GPU 0 is named with what it alone holds, and a process a GPU is the fix") {
  const auto plan = plan_of(
      "--model llama-3.2-1b --framework plain-pytorch --micro-batch 4 --sequence 1024 --on 2xh200 "
      "--parallel data-parallel");
  const Value* memory = find(plan, "memory");
  REQUIRE(memory != nullptr);
  CHECK((*memory)["gpu"].GetInt() == 0);
  CHECK(has(text(*memory, "cause"), "it alone has the optimizer's states"));
  CHECK(has(text(*memory, "cause"), "gathers the outputs of all GPUs"));
  const Value* time = find(plan, "time");
  REQUIRE(time != nullptr);
  REQUIRE((*time)["fix"].IsObject());
  CHECK(has((*time)["fix"]["words"].GetString(), "parallel ddp"));
  CHECK((*time)["fix"]["step_seconds"].GetDouble() <
        plan["options"][0]["step_seconds"].GetDouble());
}

TEST_CASE("DataParallel under the Trainer has no autocast, which is said; its fix has") {
  const std::string job = "--model llama-3.2-1b --micro-batch 4 --sequence 1024 ";
  const auto mixed = plan_of(job + "--on 2xh200 --parallel data-parallel");
  const auto full = plan_of(job + "--on 2xh200 --parallel data-parallel --precision fp32");
  CHECK(most_needed(mixed) == most_needed(full));
  const auto says = [](const rapidjson::Document& plan) {
    for (const Value& warning : plan["options"][0]["warnings"].GetArray()) {
      if (has(warning.GetString(), "no autocast under DataParallel")) return true;
    }
    return false;
  };
  CHECK(says(mixed));
  CHECK(!says(full));
  // One GPU is not wrapped.
  const auto one = plan_of(job + "--on h200 --parallel data-parallel");
  CHECK(most_needed(one) == most_needed(plan_of(job + "--on h200")));
  CHECK(!says(one));
}

TEST_CASE(
    "uneven experts: the rank whose experts get more rows is named, fewer expert ranks fix it") {
  const std::string model = SHARDFIT_SOURCE_DIR "/tests/data/validate/models/mixtral-4l-1024h.json";
  const std::string job = "--model " + model +
                          " --framework megatron --parallel zero1 --on 4xh200 --sequence 4096 "
                          "--micro-batch 8 --ep 4";
  const auto uneven = plan_of(job + " --experts eager:0.3,0.2,0.1,0.1,0.1,0.1,0.05,0.05");
  const Value* memory = find(uneven, "memory");
  REQUIRE(memory != nullptr);
  CHECK((*memory)["gpu"].GetInt() == 0);
  CHECK(text(*memory, "cause")
            .starts_with("uneven experts: of a pass the routing sends 131,084 rows to its experts, "
                         "26,2"));
  CHECK((*memory)["cost_bytes"].GetInt64() > 0);
  REQUIRE((*memory)["fix"].IsObject());
  CHECK(text((*memory)["fix"], "words").starts_with("ep "));
  CHECK((*memory)["fix"]["needed_bytes"].GetInt64() < most_needed(uneven));
  const Value* time = find(uneven, "time");
  REQUIRE(time != nullptr);
  CHECK((*time)["gpu"].GetInt() == 0);
  CHECK(text(*time, "cause").starts_with("uneven experts: "));
  const auto even = plan_of(job);
  CHECK(find(even, "memory") == nullptr);
  CHECK(most_needed(even) < most_needed(uneven));
}
