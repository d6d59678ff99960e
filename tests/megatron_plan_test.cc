// Tensor and pipeline parallelism in `shardfit plan`: Megatron-core's programs beside the others.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <map>

#include "cli/cli.h"
#include "plan_document.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using rapidjson::Value;

namespace {

const std::string root = SHARDFIT_SOURCE_DIR;

const test::TemporaryFile& small_model() {
  static const test::TemporaryFile file(
      R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
 "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
 "max_position_embeddings": 4096})");
  return file;
}

using test::plan_document;
rapidjson::Document small_plan(const std::string& arguments) {
  return plan_document("--model " + small_model().path + " --sequence 128 " + arguments);
}

/// Every way of an option, the chosen one too, as "tensor 2x1x2" (tp, pp, dp), with why.
std::map<std::string, std::string> ways_of(const Value& option) {
  std::map<std::string, std::string> ways;
  const auto add = [&](const Value& way, const std::string& because) {
    const Value& degrees = way["degrees"];
    std::string name = way["parallel"].GetString();
    for (const char* key : {"tp", "pp", "dp"}) {
      name += (key[0] == 't' ? " " : "x") + std::to_string(degrees[key].GetInt());
    }
    CHECK(ways.emplace(name, because).second);
  };
  add(option, "chosen");
  for (const Value& other : option["alternatives"].GetArray()) {
    add(other, other["because"].GetString());
  }
  return ways;
}

}  // namespace

TEST_CASE("a Megatron job is tried with replicas, split states, tensor and pipeline ranks") {
  const auto plan = small_plan("--framework megatron --on 2xh200");
  const auto ways = ways_of(plan["options"][0]);
  for (const char* way :
       {"ddp 1x1x2", "zero1 1x1x2", "tensor 2x1x1", "pipeline 1x2x1", "independent 1x1x1"}) {
    CAPTURE(way);
    REQUIRE(ways.count(way) == 1);
    CHECK(ways.at(way) != "");
  }
  CHECK(ways.size() == 5);
}

TEST_CASE("four GPUs: every pair of degrees whose product divides them is tried, or says why not") {
  const auto plan = small_plan("--framework megatron --on 4xh200");
  const auto ways = ways_of(plan["options"][0]);
  for (const char* way : {"tensor 2x1x2", "tensor 4x1x1", "tensor 2x2x1", "pipeline 1x2x2",
                          "pipeline 1x4x1", "ddp 1x1x4", "zero1 1x1x4"}) {
    CAPTURE(way);
    CHECK(ways.count(way) == 1);
  }
  const auto three = small_plan("--framework megatron --on 3xh200");
  const auto why = ways_of(three["options"][0]);
  CHECK(why.at("tensor 3x1x1") ==
        "8 attention heads do not divide by 3; the nearest that can be: 1");
  // One data-parallel rank, so a step of it is over a third of the samples.
  CHECK(why.at("pipeline 1x3x1").find("times as long a sample") != std::string::npos);
}

TEST_CASE("layers that do not divide by the stages are dealt out, which is an assumption") {
  const auto plan = small_plan("--framework megatron --on 3xh200 --parallel pipeline");
  const Value& option = plan["options"][0];
  REQUIRE(option["gpus"].Size() == 3);
  std::string value;
  for (const Value& one : option["assumptions"].GetArray()) {
    if (one["key"] == "stage-layers") value = one["value"].GetString();
  }
  CHECK(value == "1,2,1");
  const auto told =
      small_plan("--framework megatron --on 3xh200 --parallel pipeline --stage-layers 1,2,1");
  for (rapidjson::SizeType i = 0; i < 3; ++i) {
    CHECK(told["options"][0]["gpus"][i]["needed_bytes"] == option["gpus"][i]["needed_bytes"]);
  }
}

TEST_CASE("another framework's job is split by Megatron-core's program, and that is said") {
  const auto plan = small_plan("--framework plain-pytorch --on 2xh200");
  const auto ways = ways_of(plan["options"][0]);
  for (const char* way : {"tensor 2x1x1", "pipeline 1x2x1"}) {
    CHECK(ways.at(way).find("with Megatron-core's program") != std::string::npos);
  }
  CHECK(plan["options"][0]["parallel"].GetString() != std::string("tensor"));
  const auto asked = small_plan("--framework plain-pytorch --on 2xh200 --parallel tensor");
  const Value& option = asked["options"][0];
  CHECK(option["job"]["framework"].GetString() == std::string("megatron"));
  bool said = false;
  for (const Value& assumption : option["assumptions"].GetArray()) {
    said = said || assumption["value"].GetString() == std::string("Megatron-core's");
  }
  CHECK(said);
  const auto other = plan_document("--model gpt-neox-20b --sequence 128 --on 2xh200");
  for (const auto& [way, because] : ways_of(other["options"][0])) {
    if (way.find("tensor") == std::string::npos) continue;
    CHECK(because == "Megatron-core's form of model type gpt_neox is not modelled");
  }
}

TEST_CASE("tensor and pipeline degree 1 on one card are what strategy none is") {
  const auto alone = small_plan("--framework megatron --on h200 --accumulation 4");
  for (const char* way : {"tensor", "pipeline", "ddp"}) {
    CAPTURE(way);
    const auto plan = small_plan("--framework megatron --on h200 --accumulation 4 --parallel " +
                                 std::string(way));
    const Value& gpu = plan["options"][0]["gpus"][0];
    const Value& wanted = alone["options"][0]["gpus"][0];
    for (const char* key :
         {"phases", "categories", "allocated_bytes", "reserved_bytes", "needed_bytes"}) {
      CAPTURE(key);
      CHECK(gpu[key] == wanted[key]);
    }
    CHECK(plan["options"][0]["step_seconds"] == alone["options"][0]["step_seconds"]);
  }
}

TEST_CASE("each rank has its own program and peak, equal roles the same") {
  const auto plan = small_plan("--framework megatron --on 8xh200 --parallel tensor --tp 2 --pp 2");
  const Value& gpus = plan["options"][0]["gpus"];
  REQUIRE(gpus.Size() == 8);
  for (rapidjson::SizeType i = 0; i < 8; ++i) CHECK(gpus[i]["rank"].GetUint() == i);
  const auto role = [&](int i) {
    return std::string(gpus[static_cast<rapidjson::SizeType>(i)]["role"].GetString());
  };
  CHECK(role(0) == "stage 0, tensor rank 0");
  CHECK(role(0) == role(2));  // the second replica
  CHECK(role(1) == "stage 0, tensor rank 1");
  CHECK(role(7) == "stage 1, tensor rank 1");
  CHECK(gpus[0]["needed_bytes"] == gpus[2]["needed_bytes"]);
  CHECK(gpus[0]["allocated_bytes"] != gpus[4]["allocated_bytes"]);
}

TEST_CASE(
    "four 1F1B stages of Llama 3 8B: every rank as measured, the first named with its cause") {
  const std::string file = root + "/tests/data/plans/four-stages.yaml";
  const auto plan = plan_document(file);
  const Value& option = plan["options"][0];
  const Value& gpus = option["gpus"];
  REQUIRE(gpus.Size() == 4);
  // zero-mc-l8b-pp4-nmb32-r1 to -r3: allocated and reserved bytes of the whole run
  const std::pair<std::int64_t, std::int64_t> measured[] = {
      {46825106944, 47567601664}, {41888140288, 42463133696}, {49156938240, 51537510400}};
  for (rapidjson::SizeType rank = 1; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(gpus[rank]["allocated_bytes"].GetInt64() == measured[rank - 1].first);
    CHECK(static_cast<double>(gpus[rank]["reserved_bytes"].GetInt64()) ==
          doctest::Approx(static_cast<double>(measured[rank - 1].second)).epsilon(0.03));
  }
  const Value& first = option["imbalances"][0];
  CHECK(first["kind"].GetString() == std::string("memory"));
  CHECK(first["gpu"].GetInt() == 0);
  CHECK(first["against"].GetInt() == 2);
  const std::string cause = first["cause"].GetString();
  CHECK(cause.find("(1f1b) holds 4 passes in flight there, 2 here") != std::string::npos);
  CHECK(cause.find("the embedding with its gradients and states") != std::string::npos);
  CHECK(first["cost_bytes"].GetInt64() > 0);
  // The fix stands as it is pasted.
  const Value& fix = first["fix"];
  REQUIRE(fix.IsObject());
  const std::string words = fix["words"].GetString();
  const std::string key = "stage-layers ";
  REQUIRE(words.starts_with(key));
  const std::string layers = words.substr(key.size(), words.find(' ', key.size()) - key.size());
  const auto fixed = plan_document(file + " --stage-layers " + layers);
  std::int64_t needed = 0;
  for (const Value& gpu : fixed["options"][0]["gpus"].GetArray()) {
    needed = std::max(needed, gpu["needed_bytes"].GetInt64());
  }
  CHECK(needed == fix["needed_bytes"].GetInt64());
  CHECK(needed < gpus[0]["needed_bytes"].GetInt64());
  CHECK(fixed["options"][0]["step_seconds"] == fix["step_seconds"]);
}

TEST_CASE("one layer a stage: the first and the last stage need a quarter to two fifths more") {
  // Layers as wide as those of GPT-3 175B, whose embedding stands on the first and the last stage.
  const test::TemporaryFile model(
      R"({"model_type": "gpt2", "n_embd": 12288, "n_layer": 4, "n_head": 96, "n_positions": 2048,
 "vocab_size": 50257})");
  const auto plan =
      plan_document("--model " + model.path +
                    " --framework megatron --on 4xh200 --parallel pipeline --sequence 2048 "
                    "--micro-batch 1 --accumulation 8");
  const Value& option = plan["options"][0];
  const auto need = [&](rapidjson::SizeType i) {
    return static_cast<double>(option["gpus"][i]["needed_bytes"].GetInt64());
  };
  const double middle = (need(1) + need(2)) / 2;
  for (const rapidjson::SizeType end : {0U, 3U}) {
    CAPTURE(end);
    CHECK(need(end) / middle > 1.25);
    CHECK(need(end) / middle < 1.40);
  }
  const Value& named = option["imbalances"][0];
  CHECK(named["gpu"].GetInt() == 0);
  CHECK(std::string(named["cause"].GetString()).find("the embedding with its gradients") !=
        std::string::npos);
  const Value& fix = named["fix"];  // one layer cannot be moved
  REQUIRE(fix.IsObject());
  CHECK(std::string(fix["words"].GetString()).starts_with("parallel tensor, tp 2, pp 2"));
  CHECK(static_cast<double>(fix["needed_bytes"].GetInt64()) < 0.95 * need(0));
}

TEST_CASE("rank 0 of ZeroRedundancyOptimizer holds 1.70 of an even share, and what evens it out") {
  const auto plan = plan_document(
      "--model llama-3.2-1b --framework plain-pytorch --precision bf16 --on 8xh200 --parallel "
      "zero1");
  const Value* share = nullptr;
  for (const Value& one : plan["options"][0]["imbalances"].GetArray()) {
    if (one["kind"].GetString() == std::string("time")) continue;
    share = &one;
    break;
  }
  REQUIRE(share != nullptr);
  CHECK((*share)["gpu"].GetInt() == 0);
  CHECK((*share)["ratio"].GetDouble() == doctest::Approx(1.70).epsilon(0.005));
  REQUIRE((*share)["fix"].IsObject());
  std::int64_t needed = 0;
  for (const Value& gpu : plan["options"][0]["gpus"].GetArray()) {
    needed = std::max(needed, gpu["needed_bytes"].GetInt64());
  }
  CHECK((*share)["fix"]["needed_bytes"].GetInt64() < needed);
}

TEST_CASE("contexts of other ranks on GPU 0 are bytes of its device, named with the way out") {
  const std::string job =
      "--model gpt2 --framework plain-pytorch --sequence 512 --on 4xh200 --parallel ddp";
  const auto own = plan_document(job);
  const auto stray = plan_document(job + " --stray-contexts yes");
  const Value& before = own["options"][0]["gpus"];
  const Value& after = stray["options"][0]["gpus"];
  const std::int64_t more =
      after[0]["device_bytes"].GetInt64() - before[0]["device_bytes"].GetInt64();
  CHECK(more == before[0]["headroom_bytes"].GetInt64() - after[0]["headroom_bytes"].GetInt64());
  for (rapidjson::SizeType i = 1; i < 4; ++i) {
    CHECK(after[i]["device_bytes"] == before[i]["device_bytes"]);
    CHECK(after[i]["headroom_bytes"] == before[i]["headroom_bytes"]);
  }
  const Value* named = nullptr;
  for (const Value& one : stray["options"][0]["imbalances"].GetArray()) {
    if (one["kind"] == "context") named = &one;
  }
  REQUIRE(named != nullptr);
  CHECK((*named)["gpu"].GetInt() == 0);
  CHECK((*named)["cost_bytes"].GetInt64() == more);
  CHECK(more > 3 * (256LL << 20));  // three contexts
  CHECK(std::string((*named)["fix"]["words"].GetString()).find("set_device") != std::string::npos);
}

TEST_CASE("a card whose bytes are taken by other ranks' contexts is the one that does not fit") {
  // Headroom between one and four contexts.
  const std::string job =
      "--model gpt2 --framework plain-pytorch --sequence 512 --parallel ddp --on 4xcard "
      "--device-profile ";
  const auto large = test::card(80000);
  const auto plan = plan_document(job + large.path);
  const std::int64_t used =
      80000 - (plan["options"][0]["gpus"][0]["headroom_bytes"].GetInt64() >> 20);
  const auto small = test::card(used + 1200);
  CHECK(plan_document(job + small.path)["options"][0]["verdict"] == "fits");
  const auto stray = plan_document(job + small.path + " --stray-contexts yes");
  CHECK(stray["options"][0]["verdict"] == "does not fit");
  CHECK(stray["options"][0]["gpus"][0]["headroom_bytes"].GetInt64() < 0);
  CHECK(stray["options"][0]["gpus"][1]["headroom_bytes"].GetInt64() > 0);
}

TEST_CASE("a card in a slower slot: the exchange goes at its rate, named with what it costs") {
  const std::string job =
      "--model gpt2 --framework plain-pytorch --sequence 512 --on 2xrtx4090 --parallel ddp "
      "--peer-access no --host-links ";
  const auto slow = plan_document(job + "26GB/s,6.5GB/s"),
             equal = plan_document(job + "26GB/s,26GB/s");
  const auto step = [](const rapidjson::Document& plan) {
    return plan["options"][0]["step_seconds"].GetDouble();
  };
  const Value* named = nullptr;
  for (const Value& one : slow["options"][0]["imbalances"].GetArray()) {
    if (one["kind"] == "link") named = &one;
  }
  REQUIRE(named != nullptr);
  CHECK((*named)["gpu"].GetInt() == 1);
  CHECK((*named)["ratio"].GetDouble() == doctest::Approx(4));
  CHECK((*named)["fix"]["step_seconds"].GetDouble() == step(equal));
  CHECK(step(equal) < step(slow));
  CHECK((*named)["cost_seconds"].GetDouble() == doctest::Approx(step(slow) - step(equal)));
  for (const Value& one : equal["options"][0]["imbalances"].GetArray()) {
    CHECK(one["kind"] != "link");
  }
}

TEST_CASE("a rank with one key and value head copies it for its query heads, as with two") {
  // repeat_interleave of a whole number clones (pytorch aten/src/ATen/native/Repeat.cpp).
  const auto plan =
      small_plan("--framework megatron --attention eager --micro-batch 2 --on 4xh200 --tp 4");
  const auto ways = ways_of(plan["options"][0]);
  REQUIRE(ways.count("tensor 4x1x1") == 1);
  CHECK(ways.at("tensor 4x1x1") == "chosen");
}

TEST_CASE("adapters are trained under fsdp1, though a rank's part may hold none of them") {
  const auto plan = small_plan("--task lora --on 2xh200 --parallel fsdp1 --precision bf16-mixed");
  CHECK(plan["options"][0]["verdict"] == "fits");
  CHECK(plan["options"][0]["step_seconds"].IsNumber());
}

TEST_CASE("another framework's program that would be much faster is named") {
  const auto plan = plan_document(
      "--model mistral-7b-v0.1 --on 8xrtx-pro-6000 --precision bf16-mixed --global-batch 40 "
      "--sequence 100 --recompute full");
  const Value& option = plan["options"][0];
  CHECK(option["parallel"] == "fsdp2");
  double most = 0;  // of the ways of Megatron-core's program
  for (const Value& other : option["alternatives"].GetArray()) {
    const std::string way = other["parallel"].GetString();
    if (!other.HasMember("samples_per_second") || !other["samples_per_second"].IsNumber()) continue;
    if (way != "tensor" && way != "pipeline") continue;
    most = std::max(most, other["samples_per_second"].GetDouble());
  }
  CHECK(most > 1.3 * option["samples_per_second"].GetDouble());
  bool said = false;
  for (const Value& warning : option["warnings"].GetArray()) {
    const std::string text = warning.GetString();
    said = said || text.starts_with("Megatron-core's program would complete");
  }
  CHECK(said);
}

TEST_CASE("the degree offered in the place of another divides the GPUs, too") {
  // 25 heads divide by 5, which 4 GPUs do not; of 12 heads and 8 GPUs 4 is nearest to 8.
  const auto none =
      test::run_command("shardfit plan --model gpt2-xl --framework megatron --on 4xh200 --tp 4");
  CHECK(none.err.find("the nearest that can be: 1\n") != std::string::npos);
  const auto four =
      test::run_command("shardfit plan --model gpt2 --framework megatron --on 8xh200 --tp 8");
  CHECK(four.err.find("the nearest that can be: 4\n") != std::string::npos);
}
