// torchtitan's tensor and pipeline ranks: what a rank has and exchanges. Bytes are held by the
// exact readings.

#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <set>

#include "program/pipelining_actions.h"
#include "program/titan_units.h"
#include "search/titan.h"
#include "strategy_support.h"
#include "tensor/engine.h"
#include "tensor/ops.h"
#include "validate/cases.h"

namespace shardfit {
namespace {

using program::PipeliningSchedule;

constexpr std::int64_t micro_batches = 4;

std::vector<program::DegreeFault> check(const program::TitanJob& job, std::int64_t passes,
                                        std::int64_t layers) {
  return program::check_titan(job, passes, layers, {32, 8, 8192, 4096});
}

Program lower_stage(std::int64_t rank, std::int64_t ranks, PipeliningSchedule schedule,
                    std::int64_t stages_a_rank = 1) {
  spec::ModelSpec model = spec::read_model(
      SHARDFIT_SOURCE_DIR "/tests/data/validate/models/meta-llama__Llama-3.2-1B.json");
  test::set_number(model, "num_hidden_layers", 4);
  program::TrainingJob job;
  job.framework = "torchtitan";
  job.program = "torchtitan-0.2.2-trainer";
  job.parameters = DType::f32;
  job.sequence = 64;
  job.accumulation = micro_batches;
  job.clip_foreach = true;
  job.steps = 2;
  job.titan = program::TitanJob{};
  job.titan->data = 2;
  job.titan->pipeline = ranks;
  job.titan->stages_a_rank = stages_a_rank;
  job.titan->rank = 2 * rank;
  job.titan->schedule = schedule;
  program::Fsdp2Job fsdp;
  fsdp.compute = DType::bf16;
  fsdp.reduce = DType::f32;
  program::set_titan_mesh(fsdp, *job.titan);
  program::set_titan_units(fsdp, "default", true);
  job.fsdp2 = fsdp;
  return program::Lowering(std::move(model), "torchtitan").lower(job);
}

}  // namespace

TEST_CASE("torchtitan's stages share the layers, input and output counted as one each") {
  using List = std::vector<std::int64_t>;
  CHECK(program::titan_stage_layers(2, 16) == List{8, 8});
  CHECK(program::titan_stage_layers(4, 16) == List{4, 5, 4, 3});
  CHECK(program::titan_stage_layers(8, 32) == List{4, 5, 4, 4, 4, 4, 4, 3});
  for (std::int64_t stages = 2; stages <= 12; ++stages) {
    const List layers = program::titan_stage_layers(stages, 37);
    CHECK(std::accumulate(layers.begin(), layers.end(), std::int64_t{0}) == 37);
  }
}

TEST_CASE("torchtitan's stages gather and reduce once a step, and pass on every micro-batch") {
  for (const PipeliningSchedule schedule :
       {PipeliningSchedule::gpipe, PipeliningSchedule::one_forward_one_backward}) {
    for (std::int64_t stage = 0; stage < 3; ++stage) {
      CAPTURE(stage);
      const Program program = lower_stage(stage, 3, schedule);
      const auto count = test::exchanges(program);
      const int neighbours = stage == 1 ? 2 : 1;
      CHECK(count.at(CollectiveKind::send) == 2 * micro_batches * neighbours);
      CHECK(count.at(CollectiveKind::receive) == 2 * micro_batches * neighbours);
      // 2 + 2 + 2 of six: one with the embedding, two blocks, one with norm and output.
      CHECK(count.at(CollectiveKind::reduce_scatter) == 2 * 2);
      // Once more to find out shapes.
      CHECK(count.at(CollectiveKind::all_gather) == 3 * 2);
    }
  }
}

TEST_CASE("torchtitan's stages of several a rank pass on what the next rank needs, and no more") {
  struct Row {
    PipeliningSchedule schedule;
    std::int64_t rank;
    int forward, backward;  // edges to another rank, out of this one
  };
  // Two ranks, four stages: 0 2 | 1 3, or there and back 0 3 | 1 2.
  for (const Row& row : {Row{PipeliningSchedule::interleaved, 0, 2, 1},
                         Row{PipeliningSchedule::interleaved, 1, 1, 2},
                         Row{PipeliningSchedule::interleaved_zero_bubble, 1, 1, 2},
                         Row{PipeliningSchedule::zero_bubble_v, 0, 1, 1},
                         Row{PipeliningSchedule::zero_bubble_v, 1, 1, 1}}) {
    const auto count = test::exchanges(lower_stage(row.rank, 2, row.schedule, 2));
    CHECK(count.at(CollectiveKind::send) == 2 * micro_batches * (row.forward + row.backward));
  }
}

TEST_CASE("torchtitan's pipelines that cannot be are refused with the nearest that can") {
  program::TitanJob job;
  job.pipeline = 4;
  CHECK(check(job, 8, 16).empty());
  CHECK(check(job, 2, 16).at(0).nearest == 4);
  job.pipeline = 20;
  CHECK(check(job, 20, 16).at(0).nearest == 18);
  job.pipeline = 4;
  job.schedule = PipeliningSchedule::interleaved;
  CHECK(check(job, 8, 16).at(0).key == "virtual_stages");
  job.stages_a_rank = 2;
  CHECK(check(job, 9, 16).at(0).nearest == 8);
  job.schedule = PipeliningSchedule::zero_bubble_v;
  CHECK(check(job, 9, 16).empty());
  job.stages_a_rank = 3;
  CHECK(check(job, 9, 16).at(0).key == "virtual_stages");
  job = {};
  job.tensor = 16;
  CHECK(check(job, 1, 16).at(0).nearest == 8);
}

// As PyTorch 2.13 prints its own (pipeline_order_with_comms of two ranks, two micro-batches).
TEST_CASE("the actions of a rank are PyTorch's own, in its order") {
  const auto written = [](PipeliningSchedule schedule, std::size_t rank) {
    static const char* const names[] = {
        "F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
    std::string text;
    const auto of_ranks = program::pipelining_actions({schedule, 2, 2, 2});
    for (const auto& a : of_ranks[rank]) {
      text += std::to_string(a.stage) + names[static_cast<int>(a.kind)];
      if (a.micro_batch >= 0) text += std::to_string(a.micro_batch);
      text += ' ';
    }
    return text;
  };
  CHECK(written(PipeliningSchedule::interleaved, 0) ==
        "0UNSHARD 2UNSHARD 0F0 0SEND_F0 2RECV_F0 0F1 0SEND_F1 2RECV_F1 2F0 2SEND_F0 2F1 2SEND_F1 "
        "2RECV_B0 2B0 2SEND_B0 2RECV_B1 2B1 2SEND_B1 2REDUCE 2RESHARD 0RECV_B0 0B0 0RECV_B1 0B1 "
        "0REDUCE 0RESHARD ");
  CHECK(written(PipeliningSchedule::interleaved_zero_bubble, 1) ==
        "1UNSHARD 3UNSHARD 1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3I0 "
        "3SEND_B0 1RECV_B0 3F1 3I1 3SEND_B1 1RECV_B1 3W0 1I0 1SEND_B0 3W1 3REDUCE 3RESHARD 1I1 "
        "1SEND_B1 1W0 1W1 1REDUCE 1RESHARD ");
  CHECK(written(PipeliningSchedule::zero_bubble_v, 0) ==
        "0UNSHARD 3UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 3F0 3I0 3SEND_B0 3RECV_F1 3W0 3F1 "
        "3I1 3SEND_B1 0RECV_B0 3W1 3REDUCE 3RESHARD 0I0 0W0 0RECV_B1 0I1 0W1 0REDUCE 0RESHARD ");
}

TEST_CASE("a tensor rank as planned is the measured one") {
  int seen = 0;
  for (const auto& measured :
       validate::read_cases(SHARDFIT_SOURCE_DIR "/tests/data/validate/torchtitan.yaml")) {
    const program::TrainingJob& job = measured.job;
    if (job.titan->tensor == 1 || job.titan->data == 1 || job.titan->rank > 0) continue;
    program::TrainingJob planned = job;
    planned.autocast = DType::bf16;
    planned.fsdp2.reset();
    planned =
        search::titan_job(planned, spec::Parallel::tensor, job.titan->tensor * job.titan->data, 0);
    spec::ModelSpec model = spec::read_model(measured.model_path);
    const program::Lowering lowering(std::move(model), "torchtitan");
    const Program a = lowering.lower(job);
    const Program b = lowering.lower(planned);
    REQUIRE(a.storages.size() == b.storages.size());
    REQUIRE(a.instructions.size() == b.instructions.size());
    CHECK(a.groups == b.groups);
    const bool same =
        std::equal(a.storages.begin(), a.storages.end(), b.storages.begin(),
                   [](const StorageInfo& x, const StorageInfo& y) { return x.bytes == y.bytes; });
    CHECK(same);
    ++seen;
  }
  CHECK(seen > 1);
}

TEST_CASE("every pass of a schedule runs once, after what it needs") {
  for (const PipeliningSchedule schedule :
       {PipeliningSchedule::interleaved, PipeliningSchedule::interleaved_zero_bubble,
        PipeliningSchedule::zero_bubble_v}) {
    for (std::int64_t ranks = 2; ranks <= 5; ++ranks) {
      const program::PipeliningShape shape{schedule, ranks, 2, 2 * ranks};
      std::map<program::ActionKind, int> count;
      for (const auto& actions : program::pipelining_actions(shape)) {
        std::set<program::PipelineAction> done;
        for (const auto& a : actions) {
          ++count[a.kind];
          CHECK(done.insert(a).second);
          if (a.kind != program::ActionKind::backward_weight) continue;
          CHECK(done.count({program::ActionKind::backward_input, a.stage, a.micro_batch}) == 1);
        }
      }
      const auto passes = static_cast<int>(shape.stages() * shape.micro_batches);
      const bool cut = schedule != PipeliningSchedule::interleaved;
      using enum program::ActionKind;
      CHECK(count[forward] == passes);
      CHECK(count[full_backward] == (cut ? 0 : passes));
      CHECK(count[backward_weight] == (cut ? passes : 0));
      CHECK(count[send_forward] == count[receive_forward]);
      CHECK(count[send_backward] == count[receive_backward]);
      CHECK(count[unshard] == count[reshard]);
      CHECK(count[reduce_gradients] == shape.stages());
    }
  }
}

TEST_CASE("gradients of chosen leaves leave the others without") {
  tensor::Runtime runtime({});
  runtime.module_id("");
  const auto leaf = [&] {
    tensor::Tensor made = runtime.empty({4, 4}, DType::f32);
    made->leaf_requires_grad = true;
    return made;
  };
  const tensor::Tensor input = leaf(), weight = leaf(), unused = leaf();
  const tensor::Tensor product = tensor::mul(tensor::mul(input, weight), weight);
  const tensor::Tensor ones = runtime.empty({4, 4}, DType::f32);
  tensor::GradientsAsked asked;
  asked.roots = {{product->grad_fn, product->output}};
  asked.gradients = {ones};
  asked.wanted = {input->accumulator, unused->accumulator};
  const auto gradients = tensor::gradients_of(asked);
  REQUIRE(gradients[0]);
  CHECK(gradients[0].shape() == input.shape());
  CHECK_FALSE(gradients[1]);
  CHECK_FALSE(input->grad);
  CHECK_FALSE(weight->grad);
}

}  // namespace shardfit
