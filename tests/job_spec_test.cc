#include "spec/job_spec.h"

#include <doctest/doctest.h>

#include <random>

#include "support.h"
#include "text_test.h"

using namespace shardfit;
using namespace shardfit::spec;

namespace {

/// The command line as a map of job keys, as the cli makes it: {"on", "h200"} twice gives a list.
Node command_line(const std::vector<std::pair<std::string, std::string>>& words) {
  std::string text;
  for (const auto& [key, value] : words) text += "--" + key + " " + value + " ";
  const SourcePtr source = test::source(text, "command line");
  Node map;
  map.kind = Kind::map;
  map.where = {source, 0, 0};
  std::size_t at = 0;
  for (const auto& [key, value] : words) {
    Node node = word(value, {source, at + 3 + key.size(), value.size()});
    node.key = key;
    node.key_where = {source, at, 2 + key.size()};
    at += 4 + key.size() + value.size();
    if (key != "on" && key != "device-profile") {
      map.children.push_back(node);
      continue;
    }
    if (!map.child(key)) {
      Node list;
      list.kind = Kind::list;
      list.key = key;
      map.children.push_back(list);
    }
    for (Node& child : map.children) {
      if (child.key == key) child.children.push_back(node);
    }
  }
  return map;
}

PlanSpec plan(const std::vector<std::pair<std::string, std::string>>& words,
              const std::vector<std::string>& files = {}) {
  DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  Diagnostics faults;
  PlanSpec spec = read_plan(files, command_line(words), devices, faults);
  faults.throw_if_any();
  return spec;
}

JobSpec job(const std::string& yaml) {
  const test::TemporaryFile file("model: m\noptions: [{on: h200}]\njob: " + yaml, "plan.yaml");
  return plan({}, {file.path}).options.at(0).job;
}

std::string plan_faults(const std::vector<std::pair<std::string, std::string>>& words,
                        const std::string& yaml = "") {
  if (yaml.empty()) return test::errors_of([&] { plan(words); });
  const test::TemporaryFile file(yaml, "plan.yaml");
  return test::errors_of([&] { plan(words, {file.path}); });
}

std::string batch_of(const std::string& yaml, std::int64_t ranks) {
  Diagnostics faults;
  const auto batch = resolve_batch(job(yaml), ranks, faults);
  if (!batch) return test::errors_of([&] { faults.throw_if_any(); });
  return std::to_string(batch->micro) + "x" + std::to_string(batch->accumulation) + "x" +
         std::to_string(ranks) + "=" + std::to_string(batch->global);
}

}  // namespace

TEST_CASE("a plan file gives model, job and options, each value with its place") {
  const test::TemporaryFile file(
      "model: llama\n"
      "job:\n  task: lora\n  framework: plain-pytorch\n  framework_version: '2.9'\n"
      "  precision: bf16\n  optimizer: adamw-fused\n  micro-batch: 2\n  sequence: 4096\n"
      "  recompute: selective:ops\n  attention: flash\n  lora_rank: 16\n"
      "  lora_targets: [q_proj, v_proj]\n"
      "options:\n  - on: h200\n  - {on: 2xb200, parallel: ddp, micro_batch: 4}\n"
      "hypothesis: larger-batch\nprices: " SHARDFIT_SOURCE_DIR "/tests/data/prices/two.yaml\n",
      "plan.yaml");
  const PlanSpec spec = plan({}, {file.path});
  REQUIRE(spec.options.size() == 2);
  const JobSpec& first = spec.options[0].job;
  CHECK(first.model.value == "llama");
  CHECK(first.task.value == Task::lora);
  CHECK(first.framework.value == Framework::plain_pytorch);
  CHECK(first.framework_version->value == "2.9");
  CHECK(first.precision.value == Precision::bf16);
  CHECK(first.optimizer->value == Optimizer::adamw_fused);
  CHECK(first.micro_batch->value == 2);
  CHECK(first.micro_batch->where.text() == file.path + ":8:16");
  CHECK(first.recompute.value.kind == RecomputeKind::selective);
  CHECK(first.recompute.value.policy == "ops");
  CHECK(first.attention.value == Attention::flash);
  CHECK(first.lora->rank.value == 16);
  CHECK(first.lora->targets->value == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(first.parallel.value == Parallel::automatic);
  CHECK(first.parallel.assumed());
  CHECK(spec.options[1].name == "2xb200 ddp");
  CHECK(spec.options[1].cluster.count == 2);
  CHECK(spec.options[1].job.micro_batch->value == 4);
  CHECK(spec.options[1].job.parallel.value == Parallel::ddp);
  CHECK(spec.hypothesis->value == Hypothesis::larger_batch);
  CHECK(spec.prices->gpu_hour.at("h200").high == 3);
  CHECK(spec.overrides.empty());
}

TEST_CASE("the command line alone makes a plan, and says what it assumed") {
  const PlanSpec spec = plan({{"model", "m"}, {"on", "h200"}, {"on", "2xb200"}, {"task", "qlora"}});
  REQUIRE(spec.options.size() == 2);
  const JobSpec& made = spec.options[0].job;
  CHECK(made.task.where.text() == "command line:1:40");
  CHECK(made.sequence.value == 2048);
  CHECK(made.sequence.assumed());
  std::vector<std::string> keys;
  for (const Assumption& assumption : made.assumptions) {
    keys.push_back(assumption.key);
    CHECK_FALSE(assumption.because.empty());
  }
  CHECK(join(keys) ==
        "framework, precision, sequence, recompute, attention, lora-rank, lora-alpha, "
        "lora-dropout, lora-dtype, parallel");
}

TEST_CASE("the command line wins over the file and says so, once") {
  const test::TemporaryFile file(
      "model: m\njob: {sequence: 4096, task: full}\noptions: [{on: h200}, {on: b200}]\n",
      "plan.yaml");
  const PlanSpec spec = plan({{"sequence", "8192"}}, {file.path});
  CHECK(spec.options[1].job.sequence.value == 8192);
  REQUIRE(spec.overrides.size() == 1);
  CHECK(spec.overrides[0].key == "sequence");
  CHECK(spec.overrides[0].winner == "8192");
  CHECK(spec.overrides[0].loser == "4096");
  CHECK(spec.overrides[0].loser_where.line() == 2);

  const PlanSpec other = plan({{"on", "l40s"}}, {file.path});
  REQUIRE(other.options.size() == 1);
  CHECK(other.options[0].cluster.device.name == "l40s");
  CHECK(other.overrides.at(0).loser == "h200, b200");
}

TEST_CASE("an option's key wins over the job, and the command line over both") {
  const test::TemporaryFile file(
      "model: m\njob: {micro-batch: 1}\noptions: [{on: h200, micro-batch: 2}]\n", "plan.yaml");
  CHECK(plan({}, {file.path}).options[0].job.micro_batch->value == 2);
  CHECK(plan({{"micro-batch", "3"}}, {file.path}).options[0].job.micro_batch->value == 3);
}

TEST_CASE("later files win over earlier ones") {
  const test::TemporaryFile first("model: m\njob: {sequence: 1024}\noptions: [{on: h200}]\n");
  const test::TemporaryFile second("job: {sequence: 2048}\n");
  const PlanSpec spec = plan({}, {first.path, second.path});
  CHECK(spec.options[0].job.sequence.value == 2048);
  CHECK(spec.overrides.size() == 1);
}

TEST_CASE("any two of micro-batch, accumulation and global batch imply the third") {
  CHECK(batch_of("{micro-batch: 2, accumulation: 4}", 2) == "2x4x2=16");
  CHECK(batch_of("{micro-batch: 2, global-batch: 16}", 2) == "2x4x2=16");
  CHECK(batch_of("{accumulation: 4, global-batch: 16}", 2) == "2x4x2=16");
  CHECK(batch_of("{micro-batch: 2, accumulation: 4, global-batch: 16}", 2) == "2x4x2=16");
  CHECK(batch_of("{micro-batch: 2}", 1) == "2x1x1=2");
  CHECK(batch_of("{global-batch: 8}", 2) == "1x4x2=8");
  CHECK(batch_of("{}", 2) == "1x1x2=2");
}

TEST_CASE("batch numbers that contradict each other are an error naming each") {
  const std::string shown = batch_of("{micro-batch: 2, accumulation: 4, global-batch: 15}", 2);
  CHECK(shown.find("the global batch is not micro-batch x accumulation x ranks") !=
        std::string::npos);
  CHECK(shown.find("micro-batch 2 at") != std::string::npos);
  CHECK(shown.find("data-parallel ranks: 2") != std::string::npos);
  CHECK(batch_of("{micro-batch: 2, global-batch: 7}", 1).find("error") != std::string::npos);
  CHECK(batch_of("{micro-batch: 8, global-batch: 4}", 1).find("error") != std::string::npos);
  CHECK(batch_of("{accumulation: 3, global-batch: 2}", 1).find("error") != std::string::npos);
}

TEST_CASE("what is assumed of the batch is said") {
  Diagnostics faults;
  const auto batch = resolve_batch(job("{global-batch: 8}"), 1, faults);
  REQUIRE(batch->assumptions.size() == 1);
  CHECK(batch->assumptions[0].key == "micro-batch");
  CHECK(resolve_batch(job("{micro-batch: 1, global-batch: 8}"), 1, faults)->assumptions.empty());
}

TEST_CASE("degrees and the kind of parallelism give the data-parallel ranks") {
  const auto ranks = [](const std::string& yaml, Parallel kind, std::int64_t gpus) {
    Diagnostics faults;
    return data_parallel_ranks(job(yaml), kind, gpus, faults);
  };
  CHECK(ranks("{}", Parallel::none, 1) == 1);
  CHECK(ranks("{}", Parallel::independent, 2) == 1);
  CHECK(ranks("{}", Parallel::ddp, 8) == 8);
  CHECK(ranks("{}", Parallel::pipeline, 2) == 1);
  CHECK(ranks("{tp: 2}", Parallel::fsdp2, 8) == 4);
  CHECK(ranks("{dp: 2, fsdp: 2, tp: 2}", Parallel::fsdp2, 8) == 4);
  CHECK_FALSE(ranks("{tp: 3}", Parallel::fsdp2, 8));
  CHECK_FALSE(ranks("{dp: 4, tp: 4}", Parallel::ddp, 8));
}

TEST_CASE("every wrong word of a job is reported with its place, all at once") {
  const std::string shown = plan_faults({},
                                        "model: m\n"
                                        "job:\n"
                                        "  task: lorra\n"
                                        "  precision: bf-16\n"
                                        "  micro-batch: 0\n"
                                        "  sequence: 1e18\n"
                                        "  recompute: some\n"
                                        "  optimiser: sgd\n"
                                        "  on: h200\n"
                                        "options:\n"
                                        "  - {on: h20O, tp: -1}\n"
                                        "  - parallel: ddp\n");
  for (const char* expected :
       {":3:9: error: 'task' of the job: unknown value 'lorra'", "did you mean 'lora'?",
        ":4:14: error: 'precision'", ":5:16: error: 'micro-batch'", ":6:13: error: 'sequence'",
        ":7:14: error: 'recompute' of the job: unknown value 'some'",
        ":8:3: error: unknown key 'optimiser'", "did you mean 'optimizer'?",
        ":9:3: error: 'on' stands beside 'job'", ":11:10: error: 'on': unknown device 'h20O'",
        ":11:20: error: 'tp'", ":12:5: error: an option lacks the key 'on'"}) {
    CAPTURE(expected);
    CHECK(shown.find(expected) != std::string::npos);
  }
  // A fault of the job is said once, however many options share it.
  CHECK(shown.find("'lorra'") == shown.rfind("unknown value 'lorra'") + 14);
}

TEST_CASE("a switch takes yes and no, and true and false as YAML and JSON write them") {
  for (const char* value : {"no", "false", "'false'", "False"}) {
    CAPTURE(value);
    const test::TemporaryFile file("model: x\noptions: [{on: 2xh200, peer-access: " +
                                       std::string(value) + ", sequence-parallel: true}]\n",
                                   "plan.yaml");
    const JobSpec job = plan({}, {file.path}).options.at(0).job;
    REQUIRE(job.peer_access);
    CHECK_FALSE(job.peer_access->value);
    REQUIRE(job.sequence_parallel);
    CHECK(job.sequence_parallel->value);
  }
}

TEST_CASE("what a plan lacks is said") {
  CHECK(plan_faults({{"on", "h200"}}).find("no model is given") != std::string::npos);
  CHECK(plan_faults({{"model", "m"}}).find("no device is given") != std::string::npos);
  CHECK(plan_faults({{"model", "m"}, {"on", "h200"}, {"lora-rank", "8"}})
            .find("'lora-rank' is given, but the task is full") != std::string::npos);
  CHECK(plan_faults({}, "modle: m\n").find("did you mean 'model'?") != std::string::npos);
  CHECK(plan_faults({}, "- 1\n").find("expected a map, found a list") != std::string::npos);
  CHECK(plan_faults({}, "model: m\noptions: [{on: h200}]\njob: {micro-batch: 1, micro_batch: 2}\n")
            .find("duplicate key 'micro_batch'") != std::string::npos);
}

TEST_CASE("every key of the table is read, on the command line and in a file") {
  for (const JobKey& key : job_keys()) {
    CAPTURE(key.name);
    const std::string shown = plan_faults({{key.name, "?"}});
    CHECK(shown.find("unknown key") == std::string::npos);
    const bool beside_job = key.name == "model" || key.group == "Decision" || key.repeatable;
    if (key.name == "on") continue;  // stands in an option
    const std::string in_file =
        beside_job ? key.name + ": '?'\n" : "job: {" + key.name + ": '?'}\n";
    CHECK(plan_faults({}, in_file).find("unknown key") == std::string::npos);
  }
}

TEST_CASE("random words for random keys give a plan or located faults, never a crash") {
  const std::vector<std::string> words{
      "h200", "2xb200", "0",          "-1",          "1e18", "99999999999999999999",
      "full", "lora",   "selective:", "selective:x", ",",    "a,,b",
      "nan",  "true",   "null",       "~",           "1",    "4",
      "x",    "2x",     "fp32",       "auto",        "",     "{}",
      "[",    "&a"};
  for (unsigned seed = 0; seed < test::fuzz_rounds(300); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::pair<std::string, std::string>> given;
    for (const JobKey& key : job_keys()) {
      if (key.name == "device-profile" || random() % 3 != 0) continue;
      given.emplace_back(key.name, words[random() % words.size()]);
    }
    const std::string shown = plan_faults(given);
    CHECK((shown.empty() || shown.find("error: ") != std::string::npos));
  }
}

TEST_CASE("plans too long to be meant are refused") {
  std::string keys = "model: m\njob:\n";
  for (int i = 0; i < 100'000; ++i) keys += "  k_" + std::to_string(i) + ": 1\n";
  CHECK(plan_faults({}, keys).find("the job has 100000 entries, more than 200") !=
        std::string::npos);
  std::string options = "model: m\noptions:\n";
  for (int i = 0; i < 1001; ++i) options += "  - {on: h200}\n";
  CHECK(plan_faults({}, options).find("has 1001 entries, more than 1000") != std::string::npos);
}

TEST_CASE("a path is meant relative to the file that names it") {
  const test::TemporaryFile plan_file("model: m.json\n", "plan.yaml");
  const std::string folder = plan_file.path.substr(0, plan_file.path.rfind('/'));
  const Location where{test::source("model: m.json", plan_file.path), 7, 6};
  CHECK(resolve_beside({"m.json", where, ""}) == "m.json");
  std::ofstream(folder + "/m.json") << "{}";
  CHECK(resolve_beside({"m.json", where, ""}) == folder + "/m.json");
  CHECK(resolve_beside({"/m.json", where, ""}) == "/m.json");
}

TEST_CASE("the first word of each list is the default of its enumeration") {
  CHECK(task_names()[static_cast<std::size_t>(Task::inference)] == "inference");
  CHECK(framework_names()[static_cast<std::size_t>(Framework::prime_rl)] == "prime-rl");
  CHECK(precision_names()[static_cast<std::size_t>(Precision::fp32)] == "fp32");
  CHECK(optimizer_names()[static_cast<std::size_t>(Optimizer::adagrad)] == "adagrad");
  CHECK(attention_names()[static_cast<std::size_t>(Attention::flash3)] == "flash3");
  CHECK(parallel_names()[static_cast<std::size_t>(Parallel::independent)] == "independent");
  CHECK(schedule_names()[static_cast<std::size_t>(Schedule::zbv)] == "zbv");
  CHECK(hypothesis_names()[static_cast<std::size_t>(Hypothesis::make_possible)] == "make-possible");
  CHECK(adapter_dtype_names()[static_cast<std::size_t>(AdapterDtype::fp16)] == "fp16");
}

TEST_CASE("a rate of host-links that is none is the only fault of the list") {
  const auto result = test::run_command(
      "shardfit plan --model gpt2 --on 2xh200 --peer-access no --host-links 0GB/s,6GB/s");
  CHECK(result.err.find("expected a rate such as") != std::string::npos);
  CHECK(result.err.find("rates of 'host-links'") == std::string::npos);
}
