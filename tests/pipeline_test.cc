#include "program/strategies/pipeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "program/degrees.h"
#include "run/time_clock.h"
#include "tensor/node.h"

namespace shardfit {
namespace {

using program::PipelinePass;
using program::PipelineSchedule;
using program::PipelineShape;
using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Runtime;
using tensor::Shape;
using tensor::Tensor;

PipelineShape shape_of(PipelineSchedule schedule, std::int64_t stages, std::int64_t stage,
                       std::int64_t micro_batches, std::int64_t chunks = 1) {
  return {schedule, stages, stage, micro_batches, chunks};
}

/// A stage whose passes each take a second forward and two backward, whatever the chunk.
class UniformStage : public program::StageProgram {
 public:
  explicit UniformStage(Runtime& runtime, std::int64_t chunks) : runtime_(runtime) {
    pass_bytes_ = 1e9 / static_cast<double>(chunks);
    weight_ = runtime.empty(Shape{1}, DType::bf16);
    weight_->leaf_requires_grad = true;
    scale_ = runtime.empty(Shape{1}, DType::f32);
  }

  Result forward(std::int64_t, const Tensor& input) override {
    runtime_.launched("pass", DType::bf16, pass_bytes_);
    Tensor output = runtime_.empty(Shape{1}, DType::bf16);
    NodeRef node = runtime_.make_node("pass", backward, 2);
    runtime_.connect(*node.get(), 0, input);
    runtime_.connect(*node.get(), 1, weight_);
    node->number[0] = static_cast<std::int64_t>(2 * pass_bytes_);
    runtime_.attach(node, output);
    return {output, {}, {}};
  }
  Tensor loss_scale() override { return scale_; }
  void finalize() override {}

 private:
  static void backward(Node& node, Gradients&, Gradients& out) {
    node.runtime->launched("pass", DType::bf16, static_cast<double>(node.number[0]));
    if (node.wants(0)) out[0] = node.runtime->empty(Shape{1}, DType::bf16);
    if (node.wants(1)) out[1] = node.runtime->empty(Shape{1}, DType::bf16);
  }

  Runtime& runtime_;
  double pass_bytes_ = 0;
  Tensor weight_, scale_;
};

std::vector<Program> programs_of(PipelineSchedule schedule, std::int64_t stages,
                                 std::int64_t micro_batches, std::int64_t chunks) {
  std::vector<Program> programs;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    Runtime runtime({});
    runtime.record_computes = true;
    runtime.module_id("");
    runtime.program.rank = static_cast<std::int32_t>(stage);
    program::StageSettings settings;
    settings.shape = shape_of(schedule, stages, stage, micro_batches, chunks);
    for (std::int64_t s = 0; s < stages; ++s) {
      settings.ranks.push_back(static_cast<std::int32_t>(s));
    }
    settings.exchanged = Shape{1};
    UniformStage uniform(runtime, chunks);
    program::PassCopier copier(runtime.program, program::EqualPasses::copy, true);
    for (int step = 1; step <= 2; ++step) {
      program::run_pipeline_step(runtime, settings, uniform, copier);
      copier.rename();
      runtime.mark("step", step, false);
    }
    programs.push_back(std::move(runtime.program));
  }
  return programs;
}

/// Operators of 1e9 bytes take a second; nothing else takes time that counts.
run::Machine plain_machine() {
  run::Machine machine;
  machine.device.bandwidth = 1e9;
  machine.device.multiprocessors = 1;
  machine.device.bf16 = 1e12;
  machine.speed.memory_share = 1;
  machine.speed.kernel_seconds = 0;
  spec::CollectiveSpeed exchange;
  exchange.protocols.fill({0, 0, 1});
  exchange.few_ranks = 0;
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter"}) {
    machine.speed.collectives[kind] = exchange;
  }
  machine.link.bytes_per_second = 1e12;
  machine.host = {0, 0, 0};
  machine.contention = 0;
  return machine;
}

double bubble_of(PipelineSchedule schedule, std::int64_t stages, std::int64_t micro_batches,
                 std::int64_t chunks = 1) {
  const std::vector<Program> programs = programs_of(schedule, stages, micro_batches, chunks);
  std::vector<run::RankProgram> ranks;
  for (const Program& p : programs) ranks.push_back({&p, {}});
  const run::TimeResult result = run::run_time(ranks, plain_machine());
  return 1 - result.ranks.front().compute_seconds / result.step_seconds;
}

}  // namespace

TEST_CASE("uniform stages give a bubble of (p-1)/(m+p-1), read off the simulation") {
  for (const auto schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
    for (const std::int64_t p : {1, 2, 4, 8}) {
      for (const std::int64_t m : {1, 2, 4, 8, 32}) {
        CAPTURE(p);
        CAPTURE(m);
        const double wanted = static_cast<double>(p - 1) / static_cast<double>(m + p - 1);
        CHECK(bubble_of(schedule, p, m) == doctest::Approx(wanted).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("interleaved: v chunks a stage make the bubble v times smaller, beside the work") {
  for (const std::int64_t v : {2, 4}) {
    for (const std::int64_t m : {4, 8, 16}) {
      CAPTURE(v);
      CAPTURE(m);
      const double idle = 3.0 / static_cast<double>(v);  // (p - 1) / v passes of a whole stage
      const double wanted = idle / (static_cast<double>(m) + idle);
      CHECK(bubble_of(PipelineSchedule::interleaved, 4, m, v) ==
            doctest::Approx(wanted).epsilon(1e-6));
    }
  }
}

TEST_CASE("1f1b: stage s holds at most p - s micro-batches; gpipe holds all") {
  for (std::int64_t stage = 0; stage < 4; ++stage) {
    for (const std::int64_t m : {1, 2, 4, 32}) {
      const auto one = shape_of(PipelineSchedule::one_forward_one_backward, 4, stage, m);
      CHECK(program::passes_in_flight(one) == std::min<std::int64_t>(4 - stage, m));
      CHECK(program::passes_in_flight(shape_of(PipelineSchedule::gpipe, 4, stage, m)) == m);
      const auto parts = shape_of(PipelineSchedule::interleaved, 4, stage, 8, 2);
      CHECK(program::passes_in_flight(parts) == 4 + 2 * (3 - stage) + 1);
    }
  }
}

TEST_CASE("every micro-batch passes each chunk of a stage forward once, then backward once") {
  for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward,
                              PipelineSchedule::interleaved}) {
    const std::int64_t chunks = schedule == PipelineSchedule::interleaved ? 3 : 1;
    for (std::int64_t stage = 0; stage < 4; ++stage) {
      std::map<std::pair<std::int64_t, std::int64_t>, int> seen;
      for (const PipelinePass& pass :
           program::pipeline_passes(shape_of(schedule, 4, stage, 8, chunks))) {
        int& state = seen[{pass.micro_batch, pass.chunk}];
        CHECK(state == (pass.forward ? 0 : 1));
        ++state;
      }
      CHECK(seen.size() == static_cast<std::size_t>(8 * chunks));
      for (const auto& [key, state] : seen) CHECK(state == 2);
    }
  }
}

TEST_CASE("degrees that cannot be name the nearest that can") {
  CHECK(program::nearest_divisor(32, 3) == 2);
  CHECK(program::nearest_divisor(32, 7) == 8);
  CHECK(program::nearest_divisor(32, 100) == 32);
  CHECK(program::nearest_divisor(0, 5) == 1);
  const program::SplitNumbers llama{32, 8, 14336, 4096};
  CHECK(program::check_tensor_degree(llama, 4).empty());
  const auto faults = program::check_tensor_degree(llama, 16);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].message == "8 key/value heads do not divide by 16");
  CHECK(faults[0].nearest == 8);

  const auto one = PipelineSchedule::one_forward_one_backward;
  CHECK(program::check_pipeline(shape_of(one, 4, 0, 8), 32).empty());
  const auto uneven = program::check_pipeline(shape_of(one, 5, 0, 8), 32);
  REQUIRE(uneven.size() == 1);
  CHECK(uneven[0].message == "32 layers do not divide into 5 stages");
  CHECK(uneven[0].nearest == 4);
  const auto many = program::check_pipeline(shape_of(one, 40, 0, 8), 32);
  REQUIRE(many.size() == 1);
  CHECK(many[0].message == "40 stages for 32 layers");
  CHECK(many[0].nearest == 32);
  const auto groups =
      program::check_pipeline(shape_of(PipelineSchedule::interleaved, 4, 0, 6, 3), 32);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].nearest == 2);
  CHECK(groups[1].key == "micro_batches");
  CHECK(groups[1].nearest == 4);
  const auto alone =
      program::check_pipeline(shape_of(PipelineSchedule::interleaved, 1, 0, 8, 2), 32);
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].nearest == 1);
}

}  // namespace shardfit
