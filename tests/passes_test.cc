// Micro-batches of a step that repeat: copied ones are what running them gives, and leaving them
// out changes no peak.
#include "program/passes.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "model_support.h"
#include "run/observe.h"
#include "run/run.h"
#include "validate/cases.h"

using namespace shardfit;
using test::sequence;

namespace {

struct Row {
  std::string program;
  program::TrainingJob job;
};

/// Every loop, with what makes passes differ: autocast's casts, scaling, recomputation, adapters.
std::vector<Row> rows() {
  std::vector<Row> out;
  for (const char* program :
       {"plain-loop-1", "plain-loop-2", "plain-loop-3", "plain-loop-4", "trainer-1"}) {
    program::TrainingJob job;
    job.program = program;
    job.framework = std::string(program) == "trainer-1" ? "hf-trainer" : "plain-pytorch";
    job.sequence = 96;
    job.micro_batch = 2;
    job.accumulation = 20;
    out.push_back({program, job});
    job.parameters = DType::f32;
    job.autocast = DType::bf16;
    job.clip_foreach = true;
    out.push_back({program, job});
    job.recompute = program::Recompute::full;
    job.optimizer = "sgd-momentum";
    out.push_back({program, job});
    job.recompute = program::Recompute::none;
    job.autocast = DType::f16;
    job.grad_scaler = std::string(program) != "plain-loop-3" && job.program != "plain-loop-4";
    job.attention = "eager";
    out.push_back({program, job});
    job.grad_scaler = false;
    job.lora = program::LoraJob{};
    job.lora->targets = {"q_proj", "v_proj"};
    job.lora->dropout = 0.1;
    out.push_back({program, job});
  }
  return out;
}

program::Lowering small_llama(const std::string& framework) {
  spec::ModelSpec model = spec::read_model("llama-3.2-1b");
  test::set_number(model, "num_hidden_layers", 2);
  return program::Lowering(std::move(model), framework);
}

}  // namespace

TEST_CASE("a copied micro-batch is what running it gives") {
  int shorter = 0;
  for (Row& row : rows()) {
    CAPTURE(row.program);
    CAPTURE(static_cast<int>(row.job.recompute));
    const program::Lowering lowering = small_llama(row.job.framework);
    row.job.record_computes = true;
    row.job.equal_passes = program::EqualPasses::run;
    const std::string run = sequence(lowering.lower(row.job));
    row.job.equal_passes = program::EqualPasses::copy;
    const std::string copied = sequence(lowering.lower(row.job));
    CHECK(copied == run);
    row.job.equal_passes = program::EqualPasses::leave;
    shorter += sequence(lowering.lower(row.job)).size() < run.size();
  }
  CHECK(shorter == 25);  // copies were found in all of them
}

namespace {

/// Passes as a stage in mid-pipeline writes them: what one allocates the pass after next frees, an
/// event of one is awaited by the next, and a report stays.
class InFlight {
 public:
  void pass() {
    const std::uint32_t report = allocate(4), held = allocate(512);
    program.instructions.push_back({Action::record_event, 1, program.events++});
    if (program.events > 1) {
      program.instructions.push_back({Action::wait_event, 0, program.events - 2});
    }
    held_.push_back(held);
    reports_.push_back(report);
    if (held_.size() > 2) {
      release(held_.front());
      held_.erase(held_.begin());
    }
  }
  void end() {
    for (const std::uint32_t id : held_) release(id);
    for (const std::uint32_t id : reports_) release(id);
  }
  Program program;

 private:
  std::uint32_t allocate(std::int64_t bytes) {
    const auto id = static_cast<std::uint32_t>(program.storages.size());
    program.storages.push_back({bytes});
    program.instructions.push_back({Action::allocate, 0, id});
    return id;
  }
  void release(std::uint32_t id) { program.instructions.push_back({Action::release, 0, id}); }
  std::vector<std::uint32_t> held_, reports_;
};

}  // namespace

TEST_CASE("passes in flight: names of storages and events move on, what stays is freed of all") {
  constexpr std::int64_t passes = 12;
  InFlight every;
  for (std::int64_t i = 0; i < passes; ++i) every.pass();
  every.end();
  for (const bool may_stay : {true, false}) {
    InFlight some;
    program::PassCopier copier(some.program, program::EqualPasses::copy, may_stay);
    std::int64_t copied = 0;
    for (std::int64_t i = 0; i < passes; ++i) {
      copier.begin();
      some.pass();
      const std::int64_t more = copier.end(passes - 1 - i);
      copied += more;
      i += more;
    }
    some.end();
    copier.rename();
    CHECK(copied == (may_stay ? 6 : 0));  // five until they are known to be alike; the last is run
    CHECK(sequence(some.program) == sequence(every.program));
  }
}

/// Cases of every strategy, with few layers and many micro-batches.
TEST_CASE("copied micro-batches of strategies and pipelines are what running them gives") {
  int compared = 0, stages = 0;
  for (const char* file : {"plain", "zero", "megatron", "megatron_experts", "torchtitan"}) {
    const std::string data =
        std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/" + file + ".yaml";
    for (validate::Case& c : validate::read_cases(data)) {
      program::TrainingJob& job = c.job;
      const bool shared =
          job.ddp || job.fsdp1 || job.fsdp2 || job.deepspeed || job.megatron || job.zero_redundancy;
      if (!c.skipped.empty() || !shared) continue;
      CAPTURE(c.id);
      spec::ModelSpec model = validate::model_of(c);
      std::int64_t layers = 2;
      if (job.megatron) {
        layers = 2 * job.megatron->pipeline * job.megatron->virtual_stages;
        job.megatron->stage_layers.clear();
        stages += job.megatron->pipeline > 1;
      }
      test::set_number(model, "num_hidden_layers", layers);
      job.steps = 3;
      const program::Lowering lowering(std::move(model), job.framework);
      const std::int64_t width = job.megatron ? job.megatron->pipeline : 1;
      for (const std::int64_t passes : {4 * width, 5 * width, 9 * width}) {
        job.accumulation = passes;
        for (const bool computes : {true, false}) {
          CAPTURE(passes);
          CAPTURE(computes);
          job.record_computes = computes;
          job.equal_passes = program::EqualPasses::run;
          job.repeat_steps = false;
          const std::string run = sequence(lowering.lower(job));
          job.equal_passes = program::EqualPasses::copy;
          job.repeat_steps = true;
          CHECK(sequence(lowering.lower(job)) == run);
        }
      }
      ++compared;
    }
  }
  CHECK(compared > 120);
  CHECK(stages > 15);
}

TEST_CASE("leaving equal micro-batches out changes no peak, the least capacity by a page at most") {
  for (Row& row : rows()) {
    CAPTURE(row.program);
    CAPTURE(static_cast<int>(row.job.recompute));
    const program::Lowering lowering = small_llama(row.job.framework);
    for (const std::int64_t passes : {23, 24}) {
      CAPTURE(passes);
      row.job.accumulation = passes;
      row.job.equal_passes = program::EqualPasses::run;
      const Program all = lowering.lower(row.job);
      row.job.equal_passes = program::EqualPasses::leave;
      const Program some = lowering.lower(row.job);
      const run::RunResult whole = run::run_program(all, {});
      const run::RunResult part = run::run_program(some, {});
      CHECK(part.allocated_peak == whole.allocated_peak);
      CHECK(part.reserved_peak == whole.reserved_peak);
      constexpr std::int64_t page = 2 << 20;
      const std::int64_t less =
          run::least_capacity(some, {}, false) - run::least_capacity(all, {}, false);
      CHECK(std::abs(less) <= page);
    }
  }
}
