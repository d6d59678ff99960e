// The largest batch: what the table says, plan says too.

#include <doctest/doctest.h>

#include <csignal>
#include <limits>

#include <string>

#include "program/training.h"
#include "run/memory_clock.h"
#include "search/batch.h"
#include "search/largest.h"
#include "spec/data_directory.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;

namespace {

const std::string root = SHARDFIT_SOURCE_DIR;

spec::PlanSpec plan_of(const std::string& keys) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  spec::PlanSpec plan = spec::read_plan({}, test::parse_node("{" + keys + "}"), devices, faults);
  faults.throw_if_any();
  return plan;
}

search::Plan planned(const spec::PlanSpec& spec) {
  search::PlanSettings settings;
  settings.effects = settings.changes = false;
  return search::make_plan(spec, settings);
}

struct Case {
  std::string keys;
  std::vector<std::int64_t> sequences;
};

}  // namespace

TEST_CASE("each reported maximum fits by plan, and one step above it does not") {
  const std::string llama = "model: " SHARDFIT_SOURCE_DIR "/tests/data/models/llama-3-8b.json, ";
  const std::string tiny = "model: " SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json, ";
  for (const Case& c :
       {Case{llama + "task: lora, precision: bf16, lora-dtype: bf16, on: [h200]", {4096}},
        Case{llama + "task: full, precision: bf16, on: [h200]", {4096, 8192}},
        Case{tiny + "task: full, precision: bf16, framework: plain-pytorch, on: [rtx3090]",
             {1024, 2048}}}) {
    CAPTURE(c.keys);
    const spec::PlanSpec spec = plan_of(c.keys);
    const search::Plan plan = planned(spec);
    const search::BatchTable table = search::find_batches(plan.options.front(), c.sequences);
    spec::PlanSpec all = spec;
    const spec::OptionSpec one = all.options.front();
    all.options.clear();
    const auto ask = [&](std::int64_t micro, std::int64_t sequence) {
      spec::OptionSpec option = one;
      option.job.micro_batch = spec::Setting<std::int64_t>{micro, {}, ""};
      option.job.accumulation = spec::Setting<std::int64_t>{1, {}, ""};
      option.job.sequence = {sequence, {}, ""};
      all.options.push_back(option);
    };
    for (const search::BatchRow& row : table.rows) {
      REQUIRE(row.largest > 0);
      REQUIRE(row.next);
      CHECK(row.next->micro_batch == row.largest + 1);
      ask(row.largest, row.sequence);
      ask(row.largest + 1, row.sequence);
    }
    const search::Plan plans = planned(all);
    for (std::size_t i = 0; i < plans.options.size(); i += 2) {
      CHECK(plans.options[i].verdict == search::Verdict::fits);
      CHECK(plans.options[i + 1].verdict != search::Verdict::fits);
    }
    // The cliff: the sample more that the table names is the row's next job.
    REQUIRE(table.edge);
    CHECK(table.edge->verdict == search::Verdict::fits);
    REQUIRE(!table.cliff.empty());
    CHECK(table.cliff.front().words == "one sample more");
    CHECK(table.cliff.front().cell.verdict != search::Verdict::fits);
  }
}

TEST_CASE("what a table says is free is what is free on the fullest GPU, whichever that becomes") {
  // Flat parameters are padded and the last unit's kept: GPU 0 overtakes the others as batches
  // grow.
  const std::string job =
      "model: gpt2, framework: plain-pytorch, precision: bf16, parallel: fsdp1, sequence: 1000, "
      "on: [4xa100-40]";
  const search::Plan plan = planned(plan_of(job));
  const search::BatchTable table = search::find_batches(plan.options.front(), {1000});
  const search::BatchRow& row = table.rows.at(0);
  REQUIRE(row.largest > 1);
  const search::Plan asked =
      planned(plan_of(job + ", micro-batch: " + std::to_string(row.largest)));
  const search::BatchCell* cell = row.find(row.largest);
  REQUIRE(cell);
  CHECK(cell->headroom == asked.options.front().worst_gpu().judgement.headroom());
}

TEST_CASE("a table as JSON has the degrees of its way to share the job") {
  const auto result = test::run_command(
      "shardfit batch --model llama-3.2-1b --framework megatron --precision bf16-mixed --parallel "
      "tensor --tp 2 --dp 2 --on 4xh200 --sequences 8192 --sequence 8192 --json");
  const spec::Node tables = test::parse_node(result.out, "table.json");
  REQUIRE(tables.children.size() == 1);
  const spec::Node* degrees = tables.children.front().child("degrees");
  REQUIRE(degrees);
  CHECK(degrees->child("tp")->text == "2");
  CHECK(degrees->child("dp")->text == "2");
  CHECK(degrees->child("pp")->text == "1");
}

TEST_CASE("the largest number near a guess is the one that doubling finds, in few trials") {
  for (const std::int64_t most : {1, 7, 100}) {
    for (std::int64_t answer = 0; answer <= most; ++answer) {
      for (const std::int64_t guess : {1, 5, 50, 400}) {
        int trials = 0;
        bool within = true;
        const auto fits = [&](std::int64_t n) {
          within = within && n >= 1 && n <= most;
          ++trials;
          return n <= answer;
        };
        const std::int64_t doubled = search::largest(most, fits);
        trials = 0;
        const std::int64_t near = search::largest_near(guess, most, fits);
        CAPTURE(most);
        CAPTURE(answer);
        CAPTURE(guess);
        CHECK(doubled == answer);
        CHECK(near == answer);
        CHECK(within);
        if (answer > 1 && answer < most && guess == answer) CHECK(trials == 2);
      }
    }
  }
}

TEST_CASE("a network that loops over its tokens: far beyond what fits nothing is run") {
  const search::Plan plan =
      planned(plan_of("model: mamba-130m, on: [rtx3090], sequence: 256, micro-batch: 16"));
  const search::Option& option = plan.options.front();
  const search::BatchTable table = search::find_batches(option, {256, 1024, 16384, 1 << 20});
  REQUIRE(table.rows.size() == 4);
  CHECK(table.rows[0].largest > table.rows[1].largest);
  CHECK(table.rows[1].largest > 0);
  for (const std::size_t far : {std::size_t{2}, std::size_t{3}}) {
    CHECK(table.rows[far].largest == 0);
    REQUIRE(table.rows[far].next);
    CHECK(table.rows[far].next->reason.find("was not run") != std::string::npos);
  }
  REQUIRE(table.longer);
  CHECK(table.longer->sequence == table.longest_sequence + search::sequence_step);
}

TEST_CASE("a table that is stopped says which rows are not decided") {
  const search::Plan plan = planned(plan_of("model: " SHARDFIT_SOURCE_DIR
                                            "/tests/data/models/tiny-llama.json, task: full, "
                                            "precision: bf16, on: [rtx3090]"));
  const search::Option& option = plan.options.front();
  volatile std::sig_atomic_t flag = 0;
  const StopCheck stop(std::numeric_limits<double>::infinity(), &flag);
  const search::BatchTable all = search::find_batches(option, {1024}, &stop);
  CHECK(all.stopped == StopCheck::Why::no);
  CHECK(all.rows.at(0).decided);
  CHECK(all.rows.at(0).largest > 0);
  flag = 1;
  const search::BatchTable none = search::find_batches(option, {1024, 2048}, &stop);
  CHECK(none.stopped == StopCheck::Why::interrupt);
  REQUIRE(none.rows.size() == 2);
  for (const search::BatchRow& row : none.rows) {
    CHECK_FALSE(row.decided);
    CHECK(row.largest == 0);
    CHECK(row.tried.empty());
  }
  CHECK(none.cliff.empty());
}

TEST_CASE("a batch nobody asked to keep does not bound the table where options differ in GPUs") {
  const spec::PlanSpec spec = plan_of("model: " SHARDFIT_SOURCE_DIR
                                      "/tests/data/models/tiny-llama.json, task: full, "
                                      "precision: bf16, on: [rtx3090, 2xrtx3090]");
  search::PlanSettings settings;
  settings.effects = settings.changes = settings.equal_batches = false;
  const search::Plan plan = search::make_plan(spec, settings);
  REQUIRE(plan.options.size() == 2);
  for (const search::Option& option : plan.options) {
    const search::BatchTable table = search::find_batches(option, {1024});
    CHECK(table.reads_sequence);
    CHECK(table.rows.at(0).largest > 2);
    REQUIRE(table.rows.at(0).next);
    CHECK(table.rows.at(0).next->micro_batch == table.rows.at(0).largest + 1);
  }
}

TEST_CASE(
    "a metric keeps its batches of logits: each one more needs their bytes, and one breaks the "
    "fit") {
  const std::string model = root + "/tests/data/models/tiny-llama.json";
  const program::Lowering lowering(spec::read_model(model, {}), "plain-pytorch");
  REQUIRE(lowering.has_metric("plain-loop-2"));
  CHECK_FALSE(lowering.has_metric("plain-loop-1"));
  program::TrainingJob job;
  job.program = "plain-loop-2";
  job.micro_batch = 8;
  job.sequence = 512;
  std::int64_t vocabulary = 0;
  for (const auto& p : lowering.parameters()) {
    if (p.path == "model.embed_tokens.weight") vocabulary = p.shape[0];
  }
  REQUIRE(vocabulary > 0);
  const auto peak_of = [&](const std::string& phase, std::int64_t batches) {
    program::TrainingJob own = job;
    own.metric_batches = batches;
    const Program program = lowering.lower(own);
    const std::vector<run::RequestedPeak> peaks = run::requested_peaks(program);
    std::int64_t most = 0;
    for (std::size_t i = 0; i < peaks.size(); ++i) {
      if (program.phases[i].name == phase) most = std::max(most, peaks[i].bytes);
    }
    return most;
  };
  // The training before it is the same.
  CHECK(peak_of("backward", 0) == peak_of("backward", 3));
  CHECK(peak_of("evaluation", 0) == 0);
  const std::int64_t logits = 8 * 512 * vocabulary * 4;
  for (const std::int64_t batches : {3, 4, 7}) {
    CHECK(peak_of("evaluation", batches + 1) - peak_of("evaluation", batches) == logits);
  }
}
