#include "program/torchtitan.h"

#include <algorithm>
#include <string>

namespace shardfit::program {

std::vector<std::int64_t> titan_stage_layers(std::int64_t stages, std::int64_t layers) {
  const std::int64_t counted = layers + 2;
  std::vector<std::int64_t> each(static_cast<std::size_t>(stages), counted / stages);
  for (std::int64_t i = 0; i < counted % stages; ++i) ++each[static_cast<std::size_t>(i)];
  --each.front();
  --each.back();
  return each;
}

PipeliningShape titan_pipeline_shape(const TitanJob& job, std::int64_t micro_batches) {
  return {job.schedule, job.pipeline, job.stages_a_rank, micro_batches};
}

std::vector<std::int64_t> titan_stages(const TitanJob& job) {
  const PipeliningShape shape = titan_pipeline_shape(job, 1);
  std::vector<std::int64_t> held;
  for (std::int64_t stage = 0; stage < job.stages(); ++stage) {
    if (shape.rank_of(stage) == job.pipeline_rank()) held.push_back(stage);
  }
  return held;
}

bool titan_holds_last(const TitanJob& job) { return titan_stages(job).back() == job.stages() - 1; }

namespace {

/// Micro-batches that a schedule cannot run, and the nearest number below that it can.
void check_micro_batches(const TitanJob& job, std::int64_t micro_batches,
                         std::vector<DegreeFault>& faults) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (job.schedule == PipeliningSchedule::one_forward_one_backward &&
      micro_batches < job.pipeline) {
    faults.push_back({"micro_batches",
                      text(micro_batches) + " micro-batches for " + text(job.pipeline) +
                          " stages: 1F1B has one a stage at least",
                      job.pipeline});
  }
  if (job.schedule != PipeliningSchedule::interleaved &&
      job.schedule != PipeliningSchedule::interleaved_zero_bubble) {
    return;
  }
  const std::int64_t rounds = std::max<std::int64_t>(1, micro_batches / job.pipeline);
  if (micro_batches % rounds == 0) return;
  faults.push_back({"micro_batches",
                    "an interleaved pipeline takes its micro-batches in " + text(rounds) +
                        " equal rounds, found " + text(micro_batches),
                    micro_batches - micro_batches % rounds});
}

}  // namespace

std::vector<DegreeFault> check_titan(const TitanJob& job, std::int64_t micro_batches,
                                     std::int64_t layers, const SplitNumbers& numbers) {
  std::vector<DegreeFault> faults;
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  for (const auto& [key, degree] : {std::pair{"tp", job.tensor},
                                    {"dp", job.data},
                                    {"pp", job.pipeline},
                                    {"virtual_stages", job.stages_a_rank}}) {
    if (degree < 1) faults.push_back({key, "a degree of " + text(degree), 1});
  }
  if (!faults.empty()) return faults;
  faults = check_tensor_degree(numbers, job.tensor);
  if (job.pipeline == 1) return faults;
  if (job.stages() > layers + 2) {
    faults.push_back(
        {"pp", text(job.stages()) + " stages for " + text(layers) + " layers, input and output",
         std::max<std::int64_t>(1, (layers + 2) / job.stages_a_rank)});
  }
  const bool single = job.schedule == PipeliningSchedule::gpipe ||
                      job.schedule == PipeliningSchedule::one_forward_one_backward;
  const bool as_many = single                    ? job.stages_a_rank == 1
                       : goes_back(job.schedule) ? job.stages_a_rank == 2
                                                 : job.stages_a_rank > 1;
  if (!as_many) {
    faults.push_back({"virtual_stages",
                      "the schedule does not take " + text(job.stages_a_rank) + " stages a rank",
                      single ? 1 : 2});
  }
  check_micro_batches(job, micro_batches, faults);
  return faults;
}

}  // namespace shardfit::program
