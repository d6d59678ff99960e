// torchtitan's pipelines: which layers a rank has, what its stage exchanges. Bytes are held by the
// exact readings.

#include <doctest/doctest.h>

#include <numeric>

#include "program/titan_units.h"
#include "strategy_support.h"
#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit {
namespace {

using program::TitanSchedule;

constexpr std::int64_t micro_batches = 4;

Program lower_stage(std::int64_t stage, std::int64_t stages, TitanSchedule schedule) {
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
  job.titan->pipeline = stages;
  job.titan->rank = 2 * stage;
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
  for (const TitanSchedule schedule :
       {TitanSchedule::gpipe, TitanSchedule::one_forward_one_backward}) {
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
  const auto gradients = tensor::gradients_of(product, ones, {input, unused});
  REQUIRE(gradients[0]);
  CHECK(gradients[0].shape() == input.shape());
  CHECK_FALSE(gradients[1]);
  CHECK_FALSE(input->grad);
  CHECK_FALSE(weight->grad);
}

}  // namespace shardfit
