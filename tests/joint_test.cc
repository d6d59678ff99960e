// The search over ways to share, micro-batches and recompute: against every configuration planned
// one by one, with its bounds, its price of memory, and what stops it.

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/plan_command.h"
#include "plan_document.h"
#include "search/joint.h"
#include "spec/data_directory.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using rapidjson::Value;
using test::card;
using test::run_command;

namespace {

const std::string root = SHARDFIT_SOURCE_DIR;
const std::string tiny = " --model " + root + "/tests/data/models/tiny-llama.json --sequence 512";

rapidjson::Document json_of(const std::string& command) {
  return test::plan_document(tiny + " " + command);
}

/// The job's keys as a plan; `card` is a device profile.
spec::PlanSpec plan_of(const std::string& card, const std::string& keys) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const spec::Node node =
      test::parse_node("{model: " + root + "/tests/data/models/tiny-llama.json, sequence: 512, " +
                       "precision: bf16, device-profile: " + card + ", " + keys + "}");
  spec::PlanSpec plan = spec::read_plan({}, node, devices, faults);
  faults.throw_if_any();
  return plan;
}

search::Plan planned(const spec::PlanSpec& spec, const search::SearchControls* controls = nullptr) {
  search::PlanSettings settings;
  settings.effects = settings.changes = false;
  settings.search = controls;
  return search::make_plan(spec, settings);
}

/// Lines put together again.
std::string unbroken(const std::string& text) {
  std::istringstream words(text);
  std::string all;
  for (std::string word; words >> word;) all += word + " ";
  return all;
}

struct Each {
  double step = std::numeric_limits<double>::infinity();
  double sample = step;
  double needed = step;
};

/// The best that fits of all configurations, each planned on its own.
Each one_by_one(const std::string& card, const std::string& framework, bool pair, int samples) {
  Each best;
  const std::string batch = ", global-batch: " + std::to_string(samples);
  const bool selective = framework == "plain-pytorch";
  using spec::Parallel;
  using spec::RecomputeKind;
  std::vector<spec::Recompute> kinds{{RecomputeKind::none, ""}, {RecomputeKind::full, ""}};
  if (selective) {
    for (const char* policy :
         {"save-attention", "save-attention-matmul", "save-attention-matmul-half",
          "every-second-block", "first-1-blocks", "first-2-blocks"}) {
      kinds.push_back({RecomputeKind::selective, policy});
    }
  }
  std::vector<Parallel> ways{Parallel::none};
  if (pair) ways = {Parallel::ddp, Parallel::fsdp2, Parallel::independent};
  if (pair && selective) ways.push_back(Parallel::zero1);
  spec::PlanSpec all =
      plan_of(card, "framework: " + framework + batch + ", on: [" + (pair ? "2x" : "") + "card]");
  const spec::OptionSpec one = all.options.front();
  all.options.clear();
  for (const Parallel way : ways) {
    for (const spec::Recompute& kind : kinds) {
      const int most = pair && way != Parallel::independent ? samples / 2 : samples;
      for (int micro = 1; micro <= most; micro *= 2) {
        spec::OptionSpec option = one;
        option.job.parallel.value = way;
        option.job.recompute.value = kind;
        option.job.micro_batch = spec::Setting<std::int64_t>{micro, {}, ""};
        all.options.push_back(std::move(option));
      }
    }
  }
  for (const search::Option& option : planned(all).options) {
    if (option.verdict != search::Verdict::fits) continue;
    best.sample = std::min(best.sample, 1 / option.samples_per_second());
    if (option.parallel == Parallel::independent) continue;
    best.step = std::min(best.step, option.timing->step_seconds);
    best.needed = std::min(best.needed, static_cast<double>(option.worst_gpu().judgement.needed));
  }
  return best;
}

const search::Best& best_of(const search::Plan& plan, spec::Objective objective) {
  for (const search::Best& best : plan.options.front().search->best) {
    if (best.objective == objective) return best;
  }
  FAIL("no such objective");
  return plan.options.front().search->best.front();
}

}  // namespace

TEST_CASE("the search finds the best of all configurations planned one by one") {
  struct Case {
    std::string framework;
    bool pair;
    std::int64_t mebibytes;
    int samples;
  };
  // From where hardly anything fits to where all of it does.
  for (const Case& c : {Case{"plain-pytorch", false, 900, 8},
                        {"plain-pytorch", false, 1000, 8},
                        {"hf-trainer", false, 1000, 16},
                        {"plain-pytorch", true, 1960, 4},
                        {"hf-trainer", true, 2000, 8}}) {
    CAPTURE(c.framework);
    CAPTURE(c.mebibytes);
    const auto file = card(c.mebibytes);
    const Each each = one_by_one(file.path, c.framework, c.pair, c.samples);
    const search::Plan plan = planned(plan_of(
        file.path, "framework: " + c.framework +
                       ", recompute: auto, micro-batch: auto, global-batch: " +
                       std::to_string(c.samples) + ", on: [" + (c.pair ? "2x" : "") + "card]"));
    const search::SearchResult& result = *plan.options.front().search;
    REQUIRE(each.step < std::numeric_limits<double>::infinity());
    // Where memory is not what is asked for, it is known but for a few pages of 2 MiB.
    const search::Best& memory = best_of(plan, spec::Objective::memory);
    CHECK(memory.value >= each.needed);
    CHECK(memory.value <= each.needed + (4 << 20));
    CHECK(memory.bound <= each.needed);
    const search::Plan least = planned(plan_of(
        file.path, "framework: " + c.framework +
                       ", objective: memory, recompute: auto, micro-batch: auto, global-batch: " +
                       std::to_string(c.samples) + ", on: [" + (c.pair ? "2x" : "") + "card]"));
    CHECK(best_of(least, spec::Objective::memory).value == each.needed);
    CHECK(best_of(least, spec::Objective::memory).proven);
    // Passes after the third are taken to be as long as the third.
    CHECK(best_of(plan, spec::Objective::step).value == doctest::Approx(each.step).epsilon(1e-3));
    CHECK(best_of(plan, spec::Objective::throughput).value ==
          doctest::Approx(each.sample).epsilon(1e-3));
    for (const search::Best& best : result.best) {
      CHECK(best.bound <= best.value);
      if (best.objective == spec::Objective::memory) continue;
      CHECK(best.proven);
      CHECK(best.bound == best.value);
    }
    CHECK(result.run + result.too_large + result.not_better == result.configurations);
    CHECK(plan.options.front().verdict == search::Verdict::fits);
  }
}

TEST_CASE("with the bytes that the price of memory names, the next configuration fits") {
  const std::int64_t mebibytes = 900;
  const std::string job = "framework: plain-pytorch, global-batch: 8, on: [card], ";
  const auto file = card(mebibytes);
  const search::Plan plan = planned(plan_of(file.path, job + "micro-batch: auto, recompute: auto"));
  const auto& price = plan.options.front().search->shadow;
  REQUIRE(price);
  const search::Found& next = price->next;
  CHECK(price->saved_seconds ==
        doctest::Approx(best_of(plan, spec::Objective::step).value - *next.step_seconds));
  const std::int64_t more = price->short_bytes / (1 << 20);
  const auto verdict = [&](std::int64_t size) {
    const auto larger = card(size);
    return planned(plan_of(larger.path,
                           job + "micro-batch: " + std::to_string(next.configuration.micro_batch) +
                               ", recompute: '" + next.configuration.recompute_words() + "'"))
        .options.front()
        .verdict;
  };
  CHECK(verdict(mebibytes + more + 1) == search::Verdict::fits);
  CHECK(verdict(mebibytes + more - 2) != search::Verdict::fits);
}

TEST_CASE("the price of memory where samples a second are searched counts other batches too") {
  const std::int64_t mebibytes = 900;
  const std::string job = "framework: plain-pytorch, on: [card], ";
  const auto file = card(mebibytes);
  const search::Plan plan =
      planned(plan_of(file.path, job + "micro-batch: auto, objective: throughput"));
  const search::SearchResult& result = *plan.options.front().search;
  REQUIRE(result.shadow);
  const search::ShadowPrice& price = *result.shadow;
  const search::Found& chosen = *result.best.front().found;
  CHECK(price.next.configuration.micro_batch > chosen.configuration.micro_batch);
  CHECK(price.next.samples_per_second > chosen.samples_per_second);
  CHECK(price.more_samples_per_second ==
        doctest::Approx(price.next.samples_per_second - chosen.samples_per_second));
  const auto larger = card(mebibytes + price.short_bytes / (1 << 20) + 1);
  const search::Plan then = planned(plan_of(
      larger.path, job + "micro-batch: " + std::to_string(price.next.configuration.micro_batch)));
  CHECK(then.options.front().verdict == search::Verdict::fits);
}

TEST_CASE("the answer of a stopped search is made of a few passes, and is like that of all") {
  const auto file = card(60000);
  const std::string job =
      "framework: plain-pytorch, on: [card], global-batch: 64, micro-batch: auto, budget: 0, "
      "accumulation: 64";
  const search::Plan short_plan = planned(plan_of(file.path, job));
  const search::Option& option = short_plan.options.front();
  CHECK(option.search->stopped == "budget");
  REQUIRE(option.job.batch.accumulation == 64);
  CHECK(std::any_of(option.warnings.begin(), option.warnings.end(), [](const std::string& text) {
    return text.find("3 of the 64 passes of a step were run") != std::string::npos;
  }));
  const search::Plan all = planned(
      plan_of(file.path, "framework: plain-pytorch, on: [card], micro-batch: 1, accumulation: 64"));
  const search::Option& whole = all.options.front();
  CHECK(option.verdict == whole.verdict);
  REQUIRE(option.timing);
  CHECK(option.timing->step_seconds == doctest::Approx(whole.timing->step_seconds).epsilon(0.005));
  CHECK(option.worst_gpu().judgement.unlimited.allocated_peak ==
        whole.worst_gpu().judgement.unlimited.allocated_peak);
  CHECK(option.job.job.stop == nullptr);  // nothing that is gone is asked later
}

TEST_CASE("a search that is stopped gives the best so far and says how far it is from a proof") {
  const auto file = card(900);
  const std::string keys =
      "framework: plain-pytorch, global-batch: 8, micro-batch: auto, recompute: auto, on: [card]";
  const search::Plan none = planned(plan_of(file.path, keys + ", budget: 0"));
  const search::SearchResult& nothing = *none.options.front().search;
  CHECK(nothing.stopped == "budget");
  CHECK(nothing.run == 1);  // the answer
  CHECK(nothing.left > 0);
  CHECK(!nothing.best.front().proven);
  CHECK(!none.options.front().reason.empty());  // an answer all the same
  // Interrupted when so many configurations have been run.
  const spec::PlanSpec spec = plan_of(file.path, keys);
  for (const int most : {1, 4, 8}) {
    CAPTURE(most);
    volatile std::sig_atomic_t stop = 0;
    search::SearchControls controls;
    controls.stop = &stop;
    controls.progress = [&](const search::SearchProgress& now) {
      CHECK(now.gap >= 0);
      if (now.run >= most) stop = 1;
    };
    const search::Plan stopped = planned(spec, &controls);
    const search::SearchResult& result = *stopped.options.front().search;
    CHECK(result.stopped == "interrupt");
    CHECK(result.left > 0);
    CHECK(result.run + result.too_large + result.left == result.configurations);
    const search::Best& best = result.best.front();
    CHECK(best.proven == (best.found && best.bound == best.value));
    CHECK(best.gap() >= 0);
  }
}

TEST_CASE("a search stopped before it knows of anything that fits decides nothing, and says so") {
  const auto file = card(720);
  const std::string command =
      "shardfit plan" + tiny +
      " --precision bf16 --micro-batch auto --global-batch 16 --recompute auto --on card "
      "--device-profile " +
      file.path;
  const auto done = run_command(command + " --budget 0 --brief");
  CHECK(done.code == cli::not_decided);
  CHECK(unbroken(done.out).find("card: not decided within the budget on card") !=
        std::string::npos);
  CHECK(unbroken(done.out).find("none yet: card was not decided within the budget") !=
        std::string::npos);
  CHECK(done.out.find("does not fit") == std::string::npos);
  CHECK(done.out.find("no option fits") == std::string::npos);
  const auto as_json = run_command(command + " --budget 0 --json");
  CHECK(as_json.code == cli::not_decided);
  CHECK(as_json.out.find("\"verdict\": \"not decided\"") != std::string::npos);
  const auto asked = run_command(command + " --budget 0 --brief --hypothesis make-possible");
  CHECK(asked.out.find("make-possible: not decided") != std::string::npos);
  const auto larger = card(800);  // what is run is tight there
  const auto tight = run_command(command + " --budget 0 --brief --device-profile " + larger.path);
  CHECK(tight.code == cli::not_decided);
  CHECK(tight.out.find("card: tight on card") != std::string::npos);
  CHECK(unbroken(tight.out).find("not decided within the budget: whether another") !=
        std::string::npos);
  // With all the time it takes it is decided.
  CHECK(run_command(command + " --brief").code == cli::does_not_fit);
}

TEST_CASE("a plan that is interrupted names the options that it did not come to") {
  const auto file = card(900);
  const spec::PlanSpec spec = plan_of(file.path, "framework: plain-pytorch, on: [card, 2xcard]");
  volatile std::sig_atomic_t stop = 0;
  search::SearchControls controls;
  controls.stop = &stop;
  const search::Plan all = planned(spec, &controls);
  CHECK(all.options.size() == 2);
  CHECK(all.unfinished.empty());
  stop = 1;
  const search::Plan none = planned(spec, &controls);
  CHECK(none.options.empty());
  CHECK(none.stopped == StopCheck::Why::interrupt);
  CHECK(none.unfinished == std::vector<std::string>{"card", "2xcard"});
  CHECK(cli::stopped_text(none) ==
        "shardfit: interrupted before anything was decided of card and 2xcard\n");
}

TEST_CASE("where nothing fits the search says so with a proof and shows what is short of least") {
  const auto file = card(800);
  const auto done = run_command(
      "shardfit plan" + tiny +
      " --precision bf16 --micro-batch auto --global-batch 16 --recompute auto --on card "
      "--device-profile " +
      file.path);
  CHECK(done.code == cli::does_not_fit);
  CHECK(done.out.find("nothing fits, proven") != std::string::npos);
  CHECK(done.out.find("micro-batch 1, accumulation 16") != std::string::npos);
}

TEST_CASE(
    "where blocks differ the search chooses among all of them, and does better than the first N") {
  // 12 blocks of text, then 12 of images, which are smaller.
  const auto small_card = card(8000);
  const auto step_of = [&](const std::string& recompute) {
    const auto done = run_command(
        "shardfit plan --model clip-vit-base-patch32 --framework plain-pytorch --sequence 77 "
        "--micro-batch 128 --device-profile " +
        small_card.path + " --on card --json --recompute " + recompute);
    rapidjson::Document plan;
    plan.Parse(done.out.c_str());
    REQUIRE_MESSAGE(!plan.HasParseError(), done.err);
    return plan;
  };
  const auto searched = step_of("auto");
  const Value& option = searched["options"][0];
  REQUIRE(option["verdict"] == "fits");
  const std::string words = option["search"]["best"][0]["configuration"]["recompute"].GetString();
  REQUIRE(words.starts_with("selective:blocks-"));
  const double step = option["step_seconds"].GetDouble();
  // Given as a person's own word it is the same job.
  const auto told = step_of(words);
  CHECK(told["options"][0]["step_seconds"] == option["step_seconds"]);
  CHECK(told["options"][0]["gpus"][0]["needed_bytes"] == option["gpus"][0]["needed_bytes"]);
  int first_that_fits = 0;
  for (int n = 1; n < 24 && first_that_fits == 0; ++n) {
    const auto first = step_of("selective:first-" + std::to_string(n) + "-blocks");
    if (first["options"][0]["verdict"] != "fits") continue;
    first_that_fits = n;
    CHECK(step < first["options"][0]["step_seconds"].GetDouble());
  }
  CHECK(first_that_fits > 1);
}

TEST_CASE("layers of a pipeline are cut so that no other cut that fits is 2 % better") {
  struct Case {
    std::string vocabulary, micro_batch;
    std::int64_t mebibytes;
  };
  // A head that works as much as several layers; then a card on which equal stages do not fit.
  for (const Case& c : {Case{"50257", "4", 20000}, Case{"8192", "16", 4050}}) {
    CAPTURE(c.vocabulary);
    const auto file = card(c.mebibytes);
    const test::TemporaryFile model(
        R"({"model_type": "gpt2", "n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 512,
 "vocab_size": )" +
        c.vocabulary + "}");
    const auto run = [&](const std::string& more) {
      const auto done = run_command("shardfit plan --model " + model.path +
                                    " --framework megatron --parallel pipeline --sequence 512 "
                                    "--accumulation 8 --micro-batch " +
                                    c.micro_batch + " --device-profile " + file.path +
                                    " --on 3xcard --json" + more);
      rapidjson::Document plan;
      plan.Parse(done.out.c_str());
      REQUIRE_MESSAGE(!plan.HasParseError(), done.err);
      return plan;
    };
    double best = std::numeric_limits<double>::infinity(), even = best;
    int fit = 0;
    for (int a = 1; a <= 6; ++a) {
      for (int b = 1; a + b <= 7; ++b) {
        const auto plan = run(" --stage-layers " + std::to_string(a) + "," + std::to_string(b) +
                              "," + std::to_string(8 - a - b));
        if (plan["options"][0]["verdict"] != "fits") continue;
        ++fit;
        const double step = plan["options"][0]["step_seconds"].GetDouble();
        best = std::min(best, step);
        if (a == 3 && b == 3) even = step;
      }
    }
    CHECK(fit > 0);
    const auto searched = run(" --objective step");
    const Value& option = searched["options"][0];
    REQUIRE(option["verdict"] == "fits");
    CHECK(option["step_seconds"].GetDouble() <= best * 1.02);
    CHECK(option["step_seconds"].GetDouble() < even);
  }
}

TEST_CASE("the first N blocks recomputed lie between none and all of them") {
  const auto needed = [](const std::string& recompute) {
    const auto plan = json_of(
        "--precision bf16 --framework plain-pytorch --micro-batch 8 --on h200 --recompute " +
        recompute);
    const Value& option = plan["options"][0];
    return std::pair(option["gpus"][0]["requested_bytes"].GetInt64(),
                     option["step_seconds"].GetDouble());
  };
  const auto none = needed("none"), full = needed("full");
  auto before = none;
  for (const char* recompute : {"selective:first-1-blocks", "selective:first-2-blocks"}) {
    const auto now = needed(recompute);
    CHECK(now.first <= before.first);
    CHECK(now.second > before.second);
    before = now;
  }
  CHECK(full.first <= before.first);
  CHECK(needed("selective:first-3-blocks") == full);  // the model has three
}

TEST_CASE("who asks for the shortest step gets it, where runs of their own complete more too") {
  const auto plans = [](int link) {  // GB/s
    const std::string rate = "{value: " + std::to_string(link) + " GB/s}";
    const test::TemporaryFile file(
        "name: card\ngpu: card\nsource: made up\nconfidence: assumed\n"
        "compute_capability: '9.0'\nmultiprocessors: {value: 132}\n"
        "memory: {usable: {value: 20000 MiB}, bandwidth: {value: 2000 GB/s}}\n"
        "peak_rates: {bf16: {value: 400 TFLOP/s}, fp32: {value: 40 TFLOP/s}}\n"
        "link: {per_gpu: " +
        rate + ", per_pair: " + rate + "}\n");
    const std::string job =
        "--precision bf16 --framework plain-pytorch --global-batch 8 --micro-batch auto "
        "--on 2xcard --device-profile " +
        file.path;
    return std::pair(json_of(job), json_of(job + " --objective step"));
  };
  const auto both = plans(12);
  const Value& taken = both.first["options"][0];
  CHECK(taken["parallel"] == "independent");
  bool said = false;
  for (const Value& one : taken["warnings"].GetArray()) {
    const std::string text = one.GetString();
    said = said || text.find("--objective step keeps to the shortest step") != std::string::npos;
  }
  CHECK(said);
  const Value& kept = both.second["options"][0];
  CHECK(kept["parallel"] != "independent");
  CHECK(kept["step_seconds"] == kept["search"]["best"][0]["value"]);
  CHECK(kept["step_seconds"].GetDouble() < taken["step_seconds"].GetDouble());
  // Where the exchange takes longer than it saves, one card alone has the shortest step.
  const auto slow = plans(2);
  CHECK(slow.second["options"][0]["parallel"] == "independent");
}

TEST_CASE("a policy of recompute that only another framework's program has is searched there") {
  const auto plan =
      json_of("--on 2xh200 --precision bf16 --recompute selective:first-1-blocks --objective step");
  const Value& option = plan["options"][0];
  CHECK(option["job"]["framework"] == "megatron");
  CHECK(option["search"]["configurations"].GetInt() > 0);
}
