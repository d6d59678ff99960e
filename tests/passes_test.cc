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
