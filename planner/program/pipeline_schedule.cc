#include "program/pipeline_schedule.h"

#include <algorithm>

namespace shardfit::program {

std::int64_t warmup_passes(const PipelineShape& shape) {
  const std::int64_t all = shape.micro_batches * shape.chunks;
  std::int64_t warmup = shape.stages - shape.stage - 1;
  if (shape.schedule == PipelineSchedule::gpipe) warmup = all;
  if (shape.schedule == PipelineSchedule::interleaved) {
    warmup = 2 * warmup + (shape.chunks - 1) * shape.stages;
  }
  return std::min(warmup, all);
}

std::vector<PipelinePass> forward_order(const PipelineShape& shape) {
  std::vector<PipelinePass> order;
  // Groups of as many micro-batches as there are stages go through all chunks in turn.
  const std::int64_t group = shape.chunks > 1 ? shape.stages : shape.micro_batches;
  for (std::int64_t first = 0; first < shape.micro_batches;
       first += std::max<std::int64_t>(1, group)) {
    const std::int64_t end = std::min(first + group, shape.micro_batches);
    for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk) {
      for (std::int64_t m = first; m < end; ++m) order.push_back({true, m, chunk});
    }
  }
  return order;
}

std::vector<PipelinePass> pipeline_passes(const PipelineShape& shape) {
  const std::vector<PipelinePass> forwards = forward_order(shape);
  const auto warmup = static_cast<std::size_t>(warmup_passes(shape));
  std::vector<PipelinePass> passes;
  const auto backward = [&](std::size_t i) {
    PipelinePass pass = forwards[i];
    pass.forward = false;
    pass.chunk = shape.chunks - 1 - pass.chunk;
    passes.push_back(pass);
  };
  for (std::size_t i = 0; i < warmup; ++i) passes.push_back(forwards[i]);
  for (std::size_t i = warmup; i < forwards.size(); ++i) {
    passes.push_back(forwards[i]);
    backward(i - warmup);
  }
  for (std::size_t i = forwards.size() - warmup; i < forwards.size(); ++i) backward(i);
  return passes;
}

std::int64_t passes_in_flight(const PipelineShape& shape) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const PipelinePass& pass : pipeline_passes(shape)) {
    now += pass.forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

std::vector<DegreeFault> check_pipeline(const PipelineShape& shape, std::int64_t layers) {
  std::vector<DegreeFault> faults;
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (shape.stages > layers) {
    faults.push_back(
        {"pp", text(shape.stages) + " stages for " + text(layers) + " layers", layers});
  } else if (layers % shape.stages != 0) {
    faults.push_back({"pp",
                      text(layers) + " layers do not divide into " + text(shape.stages) + " stages",
                      nearest_divisor(layers, shape.stages)});
  } else if (shape.chunks > 1 && (layers / shape.stages) % shape.chunks != 0) {
    const std::int64_t own = layers / shape.stages;
    faults.push_back(
        {"virtual_stages",
         "a stage's " + text(own) + " layers do not divide into " + text(shape.chunks) + " chunks",
         nearest_divisor(own, shape.chunks)});
  }
  if (shape.chunks > 1 && shape.stages == 1) {
    faults.push_back(
        {"virtual_stages", "one stage is not interleaved: " + text(shape.chunks) + " chunks", 1});
    return faults;
  }
  if (shape.schedule != PipelineSchedule::interleaved) return faults;
  // schedules.py, forward_backward_pipelining_with_interleaving
  const std::int64_t rest = shape.micro_batches % shape.stages;
  if (shape.micro_batches < shape.stages || rest != 0) {
    const std::int64_t below = std::max(shape.micro_batches - rest, shape.stages);
    faults.push_back({"micro_batches",
                      "an interleaved pipeline of " + text(shape.stages) +
                          " stages takes its micro-batches in groups of " + text(shape.stages) +
                          ", found " + text(shape.micro_batches),
                      below});
  }
  return faults;
}

}  // namespace shardfit::program
