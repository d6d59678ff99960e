// What would make a job fit that does not: single changes, combinations, other numbers, more GPUs.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <map>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "plan_document.h"
#include "search/least_kept.h"
#include "search/sharing.h"
#include "search/ways.h"
#include "spec/data_directory.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using rapidjson::Value;
using test::card;
using test::plan_document;

namespace {

const std::string root = SHARDFIT_SOURCE_DIR;

constexpr const char* four_layers =
    R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": 32000, "tie_word_embeddings": false, "max_position_embeddings": 4096})";

/// "recompute full, micro-batch 1, accumulation 8" as options; passes go together.
std::vector<std::string> options_of(const std::string& words) {
  std::vector<std::string> options;
  std::size_t at = 0;
  while (at < words.size()) {
    std::size_t end = std::min(words.find(", ", at), words.size());
    std::string word = words.substr(at, std::min(words.find(" (", at), end) - at);
    if (word.starts_with("accumulation")) {
      options.back() += " --" + word;
    } else {
      options.push_back(" --" + word);
    }
    at = end + 2;
  }
  return options;
}

const Value* find(const Value& changes, const std::string& begin) {
  for (const Value& change : changes.GetArray()) {
    if (std::string(change["words"].GetString()).starts_with(begin)) return &change;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("of a combination of changes that fits none can be left out, and it fits as planned") {
  int combinations = 0;
  struct Job {
    int mebibytes;
    std::string words;
  };
  const std::string small = "model: " + root +
                            "/tests/data/models/tiny-llama.json\njob: {framework: plain-pytorch, "
                            "sequence: 512, micro-batch: 8}\noptions: [{on: card}]\n";
  const std::string large =
      "model: llama-3.2-1b\njob: {sequence: 1024, micro-batch: 4}\noptions: [{on: card}]\n";
  for (const Job& one :
       {Job{720, small}, {760, small}, {800, small}, {14'000, large}, {18'000, large}}) {
    CAPTURE(one.mebibytes);
    const auto file = card(one.mebibytes);
    const test::TemporaryFile file_of_job(one.words);
    const std::string job = file_of_job.path + " --device-profile " + file.path;
    const auto plan = plan_document(job);
    for (const Value& change : plan["options"][0]["changes"].GetArray()) {
      const std::string words = change["words"].GetString();
      const std::vector<std::string> options = options_of(words);
      if (words.starts_with("on ") || change["verdict"] != "fits" || options.size() < 2) continue;
      CAPTURE(words);
      ++combinations;
      for (std::size_t left_out = 0; left_out <= options.size(); ++left_out) {
        std::string fewer = job;
        for (std::size_t i = 0; i < options.size(); ++i) {
          if (i != left_out) fewer += options[i];
        }
        const bool all = left_out == options.size();
        const auto own = plan_document(fewer);
        const Value& option = own["options"][0];
        CHECK_MESSAGE((option["verdict"] == "fits") == all, fewer);
        if (all) CHECK(option["gpus"][0]["needed_bytes"] == change["needed_bytes"]);
      }
    }
  }
  CHECK(combinations >= 2);
}

TEST_CASE("numbers of 16 bits are offered on several GPUs, and the fewest GPUs that fit") {
  const auto plan = plan_document("--model llama-3.1-8b --on 2xl40s");
  const Value& changes = plan["options"][0]["changes"];
  const Value* precision = find(changes, "recompute full, precision bf16");
  REQUIRE(precision);
  CHECK((*precision)["verdict"] == "fits");
  const auto told =
      plan_document("--model llama-3.1-8b --on 2xl40s --recompute full --precision bf16");
  CHECK(told["options"][0]["gpus"][0]["needed_bytes"] == (*precision)["needed_bytes"]);
  const Value* more = find(changes, "on 4xl40s: fsdp2, micro-batch 1, accumulation 1, recompute");
  REQUIRE(more);
  const auto four = plan_document("--model llama-3.1-8b --on 4xl40s --recompute full");
  CHECK(four["options"][0]["gpus"][0]["needed_bytes"] == (*more)["needed_bytes"]);
  CHECK(four["options"][0]["step_seconds"] == (*more)["step_seconds"]);
}

TEST_CASE("GPUs are doubled until the job fits, with recompute where it takes that") {
  const auto plan = plan_document("--model llama-3-70b --on h200");
  const Value& changes = plan["options"][0]["changes"];
  const Value* more =
      find(changes, "on 16xh200: fsdp2, micro-batch 1, accumulation 1, recompute f");
  REQUIRE(more);
  CHECK((*more)["verdict"] == "fits");
  const auto sixteen = plan_document("--model llama-3-70b --on 16xh200 --recompute full");
  CHECK(sixteen["options"][0]["verdict"] == "fits");
  // Where another option of the plan runs it, that is the answer.
  const auto both = plan_document("--model llama-3.1-8b --on l40s --on 8xl40s --recompute full");
  CHECK(find(both["options"][0]["changes"], "on ") == nullptr);
}

TEST_CASE("a precision that the way to share has not is not weighed: adapters under fsdp1") {
  const auto plan = plan_document("--model " SHARDFIT_SOURCE_DIR
                                  "/tests/data/models/tiny-llama.json --sequence 128 --task lora "
                                  "--on 2xh200 --parallel fsdp1");
  CHECK(plan["options"][0]["verdict"] == "fits");
}

TEST_CASE("that more GPUs were looked at in vain is said") {
  const auto file = card(700);
  const auto plan = plan_document("--model tinyllama-1.1b --sequence 512 --device-profile " +
                                  file.path + " --on card");
  bool said = false;
  for (const Value& warning : plan["options"][0]["warnings"].GetArray()) {
    said = said || std::string(warning.GetString()).starts_with("nor does it fit on 2 to 64 card");
  }
  CHECK(said);
}

TEST_CASE("where no way fits the headline is of the one that lacks least") {
  const auto file = card(700);
  const test::TemporaryFile model(four_layers);
  const auto plan =
      plan_document("--model " + model.path +
                    " --framework megatron --sequence 2048 --micro-batch 4 --on 4xcard "
                    "--device-profile " +
                    file.path);
  const Value& option = plan["options"][0];
  REQUIRE(option["verdict"] == "does not fit");
  std::int64_t least = 0;
  for (const Value& gpu : option["gpus"].GetArray()) {
    least = std::min(least, gpu["headroom_bytes"].GetInt64());
  }
  CHECK(least < 0);
  int others = 0;
  for (const Value& other : option["alternatives"].GetArray()) {
    if (!other.HasMember("headroom_bytes") || other["parallel"] == "independent") continue;
    ++others;
    CHECK(other["headroom_bytes"].GetInt64() <= least);
  }
  CHECK(others >= 2);
}

TEST_CASE("a step of many passes is as long as all of them, and holds what they hold") {
  const test::TemporaryFile model(four_layers);
  const std::string job = "--model " + model.path + " --sequence 256 --on 2xh200 --parallel ";
  for (const std::string way :
       {"ddp", "fsdp2", "tensor", "pipeline", "pipeline --schedule interleaved-1f1b"}) {
    CAPTURE(way);
    struct Step {
      double seconds;
      std::int64_t bytes;
    };
    const auto with = [&](int passes) {
      const auto plan = plan_document(job + way + " --accumulation " + std::to_string(passes));
      return Step{plan["options"][0]["step_seconds"].GetDouble(),
                  plan["options"][0]["gpus"][0]["allocated_bytes"].GetInt64()};
    };
    const int unit = way.ends_with("1f1b") ? 2 : 1;
    const Step shorter = with(128 - unit), all = with(128), more = with(1024);
    const double pass = (all.seconds - shorter.seconds) / unit;
    CHECK(pass > 0);
    CHECK(more.seconds == doctest::Approx(all.seconds + (1024 - 128) * pass).epsilon(1e-3));
    const std::int64_t expected = all.bytes + (1024 - 128) / unit * (all.bytes - shorter.bytes);
    if (way == "ddp" || way == "fsdp2") {  // each pass has its batch
      CHECK(more.bytes == expected);
      CHECK(more.bytes > all.bytes);
    } else {  // and there a number beside its loss
      CHECK(static_cast<double>(more.bytes) ==
            doctest::Approx(static_cast<double>(expected)).epsilon(2e-3));
    }
  }
}

TEST_CASE("what is counted of a way is no more than its program holds") {
  int tried = 0;
  for (const std::string framework :
       {"plain-pytorch", "hf-trainer", "deepspeed", "torchtitan", "megatron"}) {
    for (const std::string precision : {"bf16-mixed", "bf16", "fp32"}) {
      for (const std::string more : {"", " --task lora", " --optimizer sgd"}) {
        CAPTURE(framework + " " + precision + more);
        spec::DeviceCatalog devices(spec::data_directory() + "/devices");
        Diagnostics faults;
        const std::string key = more.empty() ? ""
                                : more.find("lora") != std::string::npos
                                    ? ", task: lora, lora-targets: all-linear"
                                    : ", optimizer: sgd";
        const spec::Node node = test::parse_node(
            "{model: " + root + "/tests/data/models/tiny-llama.json, sequence: 64, framework: " +
            framework + ", precision: " + precision + key + ", on: [4xh200]}");
        const spec::PlanSpec plan = spec::read_plan({}, node, devices, faults);
        search::Lowerings lowerings;
        search::Ready ready = search::prepare(plan.options.front(), lowerings, faults);
        const auto parameters = lowerings.find(plan.options.front()).parameter_count();
        for (const search::Way& way : ready.possible) {
          const search::Option option =
              search::try_option(plan.options.front(), way.parallel, way.job, *way.lowering);
          std::int64_t most = 0;
          for (const search::Gpu& gpu : option.gpus) {
            most = std::max(most, gpu.judgement.unlimited.allocated_peak);
          }
          const std::int64_t least =
              search::kept_at_least(way.job, way.parallel, option.split, 4, parameters);
          CAPTURE(search::name_of(way.parallel, option.split));
          CHECK(least > 0);
          CHECK(least <= most);
          ++tried;
        }
      }
    }
  }
  CHECK(tried > 40);
}
