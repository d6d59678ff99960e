// Pictures, sound, diffusion, recommendation: readings of vision.yaml, and what they keep for
// backward.
#include <doctest/doctest.h>

#include "exact_readings.h"
#include "model_support.h"

namespace shardfit {

TEST_CASE("exact readings: networks of pictures, sound and tables are equal to the byte") {
  test::check_exact("vision.yaml", 36);
}

TEST_CASE("ResNet-50 keeps 2,730,177,028 bytes for the backward pass of 32 pictures") {
  program::TrainingJob job;
  job.parameters = DType::f32;
  job.head = "image";
  job.micro_batch = 32;
  job.sizes["image_size"] = {224};
  const spec::ModelSpec model = spec::read_model("resnet50");
  const graph::ModelGraph graph = program::Lowering(model, "plain-pytorch").graph(job);
  const std::int64_t batch = 32 * (3 * 224 * 224 * 4 + 8);  // pictures and labels: there anyway
  CHECK(graph.total.saved_bytes - batch == 2'730'177'028);
}

}  // namespace shardfit
