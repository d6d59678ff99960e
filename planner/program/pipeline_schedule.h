#pragma once
// Orders in which a pipeline stage runs its micro-batches: GPipe (Huang et al. 2019), 1F1B
// (Narayanan et al. 2019) and interleaved 1F1B (Narayanan et al. 2021, section 2.2).

#include <cstdint>
#include <string>
#include <vector>

#include "program/degrees.h"

namespace shardfit::program {

enum class PipelineSchedule : std::uint8_t { gpipe, one_forward_one_backward, interleaved };

/// What a schedule is asked for; `chunks` of the model a stage holds are 1 but for interleaved.
struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  std::int64_t stages = 1;
  std::int64_t stage = 0;
  std::int64_t micro_batches = 1;
  std::int64_t chunks = 1;
};

/// One pass of a micro-batch through one chunk of this stage.
struct PipelinePass {
  bool forward = true;
  std::int64_t micro_batch = 0;
  std::int64_t chunk = 0;
  bool operator==(const PipelinePass&) const = default;
};

/// Forward passes before the first backward pass
/// (NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches; all
/// of them with GPipe).
std::int64_t warmup_passes(const PipelineShape& shape);

/// Forward passes in their order, then backward passes run the same order with the chunks reversed
/// (schedules.py, get_schedule_table).
std::vector<PipelinePass> forward_order(const PipelineShape& shape);

/// All passes of a stage in order.
std::vector<PipelinePass> pipeline_passes(const PipelineShape& shape);

/// Most passes whose activations are held at once, each of one chunk.
std::int64_t passes_in_flight(const PipelineShape& shape);

/// Faults of a shape for a model of that many layers: keys `pp`, `virtual_stages` and
/// `micro_batches`.
std::vector<DegreeFault> check_pipeline(const PipelineShape& shape, std::int64_t layers);

}  // namespace shardfit::program
