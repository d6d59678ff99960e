// Options side by side: the table and plan.json are the same plan, and what may not be compared is
// not.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <sstream>

#include "base/format.h"
#include "cli/cli.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using rapidjson::Value;
using test::run_command;

namespace {

const std::string root = SHARDFIT_SOURCE_DIR;
const std::string small = "shardfit plan --model " + root +
                          "/tests/data/models/tiny-llama.json --sequence 128 --micro-batch 2 ";

rapidjson::Document json_of(const std::string& command) {
  rapidjson::Document plan;
  plan.Parse(run_command(command + " --json").out.c_str());
  REQUIRE(!plan.HasParseError());
  return plan;
}

/// The cells of the table's line that begins with `label`.
std::vector<std::string> cells(const std::string& table, const std::string& label) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(label + " ")) continue;
    std::vector<std::string> found;
    for (std::size_t at = 20; at < line.size(); at += 15) {
      const std::string cell = line.substr(at, 15);
      found.push_back(cell.substr(std::min(cell.find_first_not_of(' '), cell.size())));
    }
    return found;
  }
  return {};
}

}  // namespace

TEST_CASE("the comparison and plan.json say the same") {
  const std::string command =
      "shardfit plan " + root + "/examples/02-one-h200-or-two-b200/plan.yaml";
  const auto table = run_command(command + " --brief");
  const auto plan = json_of(command);
  CHECK(table.code == cli::fits);
  const Value& options = plan["options"];
  REQUIRE(options.Size() == 2);
  const auto bytes_row = [&](const char* label, const char* key) {
    const std::vector<std::string> found = cells(table.out, label);
    REQUIRE(found.size() == options.Size());
    for (rapidjson::SizeType i = 0; i < options.Size(); ++i) {
      const Value& gpu = options[i]["gpus"][0];
      CHECK(found[i] == format_bytes(Bytes(gpu[key].GetInt64())));
    }
  };
  bytes_row("  usable", "usable_bytes");
  bytes_row("  needed", "needed_bytes");
  bytes_row("  headroom", "headroom_bytes");
  bytes_row("  allocated", "allocated_bytes");
  bytes_row("  reserved", "reserved_bytes");
  bytes_row("  device", "device_bytes");
  const std::vector<std::string> verdicts = cells(table.out, "verdict");
  for (rapidjson::SizeType i = 0; i < options.Size(); ++i) {
    CHECK(options[i]["verdict"].GetString() == verdicts[i]);
  }
  CHECK(options[0]["step_seconds"].IsNull());  // it does not run
  CHECK(cells(table.out, "  time").back() ==
        format_seconds(Seconds{options[1]["step_seconds"].GetDouble()}));
  CHECK(plan["recommendation"]["option"].GetString() == std::string("2xb200"));
  CHECK(plan["answer"].GetString() == std::string("make-possible: yes, 2xb200 (fsdp2) runs it "
                                                  "(fits), h200 does not"));
}

TEST_CASE(
    "where the link makes the exchange as long as the step, each card runs a job of its own") {
  const auto plan =
      json_of("shardfit plan " + root + "/examples/04-two-cards-without-a-bridge/plan.yaml");
  const Value& through_host = plan["options"][1];
  const Value& bridged = plan["options"][2];
  CHECK(through_host["parallel"].GetString() == std::string("independent"));
  CHECK(bridged["parallel"].GetString() != std::string("independent"));
  const double step = through_host["step_seconds"].GetDouble();
  int shared = 0;
  for (const Value& other : through_host["alternatives"].GetArray()) {
    if (!other.HasMember("step_seconds") || !other["step_seconds"].IsDouble()) continue;
    ++shared;
    // Two runs complete 16 samples in a step, the shared job 8 in its own: three quarters at most.
    CHECK(other["step_seconds"].GetDouble() * 3 >= step * 2);
  }
  CHECK(shared >= 3);
}

TEST_CASE("a search leaves out the ways in which a model does not run") {
  const auto plan = json_of(
      "shardfit plan --model clip-vit-base-patch32 --on 2xh200 --global-batch 8 --micro-batch "
      "auto");
  const Value& option = plan["options"][0];
  CHECK(option["verdict"].GetString() == std::string("fits"));
  std::string because;
  for (const Value& other : option["alternatives"].GetArray()) {
    if (other["parallel"].GetString() == std::string("fsdp2"))
      because = other["because"].GetString();
  }
  CHECK(because.find("without dimensions") != std::string::npos);
}

TEST_CASE("every way to share a job is tried, and the others are said with why not") {
  const auto plan = json_of(small + "--framework plain-pytorch --on 2xh200");
  const Value& option = plan["options"][0];
  std::vector<std::string> others{option["parallel"].GetString()};
  for (const Value& other : option["alternatives"].GetArray()) {
    others.push_back(other["parallel"].GetString());
    CHECK(std::string(other["because"].GetString()) != "");
  }
  for (const char* way : {"ddp", "zero1", "fsdp2", "fsdp1", "tensor", "pipeline", "independent"}) {
    CAPTURE(way);
    CHECK(std::count(others.begin(), others.end(), way) == 1);
  }
}

TEST_CASE(
    "fsdp1 splits what fsdp2 splits; transformers' Trainer, which gives it up, only if asked") {
  const auto needed = [&](const std::string& more) {
    const auto plan = json_of(small + more);
    return plan["options"][0]["gpus"][0]["categories"]["optimizer_states"].GetInt64();
  };
  const std::string plain = "--framework plain-pytorch ";
  const std::int64_t whole = needed(plain + "--on 2xh200 --parallel ddp");
  for (const char* way : {"fsdp1", "fsdp2"}) {
    CAPTURE(way);
    const auto share = static_cast<double>(needed(plain + "--on 2xh200 --parallel " + way));
    CHECK(share == doctest::Approx(static_cast<double>(whole) / 2).epsilon(0.02));
  }
  const auto trainer = json_of(small + "--on 2xh200");
  bool named = false;
  for (const Value& other : trainer["options"][0]["alternatives"].GetArray()) {
    if (other["parallel"] != "fsdp1") continue;
    named = true;
    CHECK(other["verdict"].IsNull());
    CHECK(other["because"] == "tried where it is asked for: --parallel fsdp1");
  }
  CHECK(named);
  const auto asked = json_of(small + "--on 2xh200 --parallel fsdp1");
  CHECK(asked["options"][0]["parallel"].GetString() == std::string("fsdp1"));
  CHECK(asked["options"][0]["degrees"]["fsdp"].GetInt() == 2);
}

TEST_CASE("a pair of AMD is planned like others, its interval wider and its link as it is") {
  const auto plan = json_of(small + "--on 2xh200 --on 2xmi300x --parallel ddp");
  const Value& cuda = plan["options"][0];
  const Value& rocm = plan["options"][1];
  const auto width = [](const Value& option) {
    const Value& gpu = option["gpus"][0];
    return static_cast<double>(gpu["interval_bytes"][1].GetInt64() -
                               gpu["interval_bytes"][0].GetInt64()) /
           static_cast<double>(gpu["allocated_bytes"].GetInt64());
  };
  CHECK(width(rocm) > width(cuda) + 0.09);
  const auto workspace = [](const Value& option) {
    return option["gpus"][0]["categories"]["workspace"].GetInt64();
  };
  CHECK(workspace(cuda) == std::int64_t{64} << 20);
  CHECK(workspace(rocm) == std::int64_t{256} << 20);
  CHECK(rocm["exchange"]["seconds"].GetDouble() > 2 * cuda["exchange"]["seconds"].GetDouble());
  bool said = false;
  for (const Value& warning : rocm["warnings"].GetArray()) {
    said = said ||
           std::string(warning.GetString()).starts_with("no job was measured on a card of AMD");
  }
  CHECK(said);
}

TEST_CASE("options of different jobs are not weighed against each other") {
  const test::TemporaryFile file(
      "model: " + root +
      "/tests/data/models/tiny-llama.json\njob: {micro-batch: 2}\n"
      "options: [{on: h200, sequence: 128}, {on: b200, sequence: 256}]\n");
  const auto plan = json_of("shardfit plan " + file.path);
  CHECK(plan["recommendation"]["option"].IsNull());
  REQUIRE(plan["differences"].Size() == 1);
  CHECK(plan["differences"][0].GetString() == std::string("sequence 128 and 256"));
}

TEST_CASE("the lowest rent of an epoch counts the hours of setting up, that of a sample does not") {
  // A short epoch: the pair is cheaper a sample, but is paid for while it is set up.
  const test::TemporaryFile prices(
      "currency: USD\ndate: 2026-05-31\ngpu_hour: {h200: 2.3, b200: 1.2}\nsetup_hours: 5\n");
  const std::string command = small + "--on h200 --on 2xb200 --prices " + prices.path;
  CHECK(json_of(command)["recommendation"]["option"] == "2xb200");
  const auto plan = json_of(command + " --samples 1000");
  CHECK(plan["recommendation"]["option"] == "h200");
  CHECK(
      std::string(plan["recommendation"]["because"].GetString()).find("lowest rent of an epoch") !=
      std::string::npos);
}

TEST_CASE("one card and a pair get the same global batch where nobody gives one") {
  const auto plan = json_of(small + "--on h200 --on 2xh200");
  CHECK(plan["differences"].Empty());
  for (const Value& option : plan["options"].GetArray()) {
    CHECK(option["job"]["global_batch"].GetInt() == 4);
    CHECK(option["job"]["accumulation"].GetInt() == 4 / 2 / option["count"].GetInt());
  }
}

TEST_CASE("each hypothesis is answered first") {
  const auto answer = [&](const std::string& hypothesis) {
    const auto plan = json_of(small + "--on h200 --on 2xh200 --hypothesis " + hypothesis);
    return std::string(plan["answer"].GetString());
  };
  CHECK(answer("make-possible").starts_with("make-possible: not needed, h200 runs it (fits)"));
  CHECK(answer("shorter-step").starts_with("shorter-step: "));
  CHECK(answer("larger-batch").find("; 2xh200 (") != std::string::npos);
}

TEST_CASE("an option alone is compared with none, and its step is said") {
  const auto answer = [&](const std::string& hypothesis) {
    const auto plan = json_of(small + "--on h200 --hypothesis " + hypothesis);
    return std::string(plan["answer"].GetString());
  };
  CHECK(answer("make-possible").starts_with("make-possible: yes, h200 runs it (fits)"));
  const std::string step = answer("shorter-step");
  CHECK(step.find("none to compare it with; h200 takes ") != std::string::npos);
  CHECK(step.find("not known") == std::string::npos);
}

TEST_CASE("the largest micro-batch is said a rank and of all, and whether a global batch is kept") {
  const auto pair = json_of(small + "--on 2xh200 --parallel ddp --hypothesis larger-batch");
  const std::string of_all = pair["answer"].GetString();
  CHECK(of_all.find(" on each of 2, ") != std::string::npos);
  CHECK(of_all.find("is not kept") == std::string::npos);
  const auto kept = json_of(small + "--global-batch 14 --on h200 --hypothesis larger-batch");
  CHECK(std::string(kept["answer"].GetString()).find("the global batch of 14 is not kept") !=
        std::string::npos);
}

TEST_CASE("a shorter step is not claimed of a search for something else without saying so") {
  const std::string command = small +
                              "--global-batch 4 --on h200 --on 2xh200 --parallel auto "
                              "--hypothesis shorter-step --objective ";
  const auto answer = [&](const std::string& objective) {
    return std::string(json_of(command + objective)["answer"].GetString());
  };
  CHECK(answer("throughput").find("the search was for throughput") != std::string::npos);
  CHECK(answer("step").find("the search was for") == std::string::npos);
}

TEST_CASE("a setting of tensor ranks that the way taken has not is said to change nothing") {
  const auto plan =
      json_of(small + "--framework plain-pytorch --on 2xh200 --sequence-parallel yes");
  const Value& option = plan["options"][0];
  REQUIRE(option["parallel"].GetString() != std::string("tensor"));
  bool said = false;
  for (const Value& warning : option["warnings"].GetArray()) {
    said = said || std::string(warning.GetString()).starts_with("sequence-parallel yes changes");
  }
  CHECK(said);
}

TEST_CASE("the samples a second of every way are those of its own global batch") {
  const auto plan = json_of(small + "--framework plain-pytorch --on 2xh200");
  int ways = 0;
  for (const Value& other : plan["options"][0]["alternatives"].GetArray()) {
    if (!other.HasMember("global_batch")) continue;
    ++ways;
    const int runs = other["parallel"] == "independent" ? 2 : 1;
    CHECK(
        other["samples_per_second"].GetDouble() ==
        doctest::Approx(runs * other["global_batch"].GetInt() / other["step_seconds"].GetDouble()));
  }
  CHECK(ways >= 5);
}

TEST_CASE(
    "a way that is not taken says the same in the table as in plan.json, which has its bytes") {
  const std::string command = small + "--on 2xb200";
  const auto plan = json_of(command);
  const auto single_spaces = [](const std::string& text) {
    std::istringstream words(text);
    std::string all;
    for (std::string word; words >> word;) all += word + " ";
    return all;
  };
  const std::string table = single_spaces(run_command(command).out);
  const Value& option = plan["options"][0];
  int ways = 0;
  for (const Value& other : option["alternatives"].GetArray()) {
    if (!other.HasMember("needed_bytes")) continue;
    ++ways;
    CHECK(other["needed_bytes"].GetInt64() > 0);
    CHECK(other["needed_bytes"].GetInt64() + other["headroom_bytes"].GetInt64() > 100LL << 30);
    const std::string because = single_spaces(other["because"].GetString());
    CHECK_MESSAGE(table.find(because) != std::string::npos, because);
  }
  CHECK(ways >= 3);
}

TEST_CASE("what an assumption does is not asked of samples longer than the learned positions") {
  for (const char* model : {"bert-base-uncased", "gpt2"}) {
    CAPTURE(model);
    const auto plan = json_of("shardfit plan --on h200 --model " + std::string(model));
    for (const auto& assumption : plan["assumptions"].GetArray()) {
      if (std::string(assumption["key"].GetString()) != "sequence") continue;
      CHECK(assumption["effect_bytes"][0].GetInt64() < 0);
      CHECK(assumption["effect_bytes"][1].GetInt64() == 0);
    }
  }
}

TEST_CASE("a way in which the model does not run is left out, with why") {
  // CLIP's temperature is a parameter without dimensions, which fully_shard refuses.
  const auto plan = json_of("shardfit plan --on 2xh200 --model clip-vit-base-patch32");
  const auto& option = plan["options"][0];
  CHECK(std::string(option["parallel"].GetString()) != "fsdp2");
  bool said = false;
  for (const auto& other : option["alternatives"].GetArray()) {
    if (std::string(other["parallel"].GetString()) != "fsdp2") continue;
    said =
        std::string(other["because"].GetString()).find("without dimensions") != std::string::npos;
  }
  CHECK(said);
  CHECK(run_command("shardfit plan --on 2xh200 --model clip-vit-base-patch32 --parallel fsdp2")
            .code == cli::bad_input);
}
