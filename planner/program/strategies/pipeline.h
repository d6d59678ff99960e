#pragma once
// A pipeline stage at work: passes in the order of a schedule, activations and gradients exchanged
// with its neighbours (megatron/core/pipeline_parallel/schedules.py, p2p_communication.py).

#include <cstdint>
#include <optional>
#include <vector>

#include "model/value.h"
#include "program/passes.h"
#include "program/pipeline_schedule.h"
#include "tensor/runtime.h"

namespace shardfit::program {

/// What runs in a stage: the framework's program, one chunk of the model at a time.
struct StageProgram {
  virtual ~StageProgram() = default;
  struct Result {
    tensor::Tensor output;  // sent on, or the loss
    tensor::Tensor tokens;  // a number for the report; the last chunk only
    model::Value report;
  };
  /// `input`: what the stage before sent; empty in the first chunk.
  virtual Result forward(std::int64_t chunk, const tensor::Tensor& input) = 0;
  /// What the loss is multiplied with before its backward.
  virtual tensor::Tensor loss_scale() = 0;
  /// All backward passes are done: gradients are exchanged.
  virtual void finalize() = 0;
};

struct StageSettings {
  PipelineShape shape;
  std::vector<std::int32_t> ranks;  // of the stages
  tensor::Shape exchanged;          // what stages send one another
  DType dtype = DType::bf16;
};

/// One step of a stage; gives the reports of the last stage's micro-batches. Passes of its steady
/// phase that do what those before did are copied, their reports left out.
model::ValueList run_pipeline_step(tensor::Runtime& runtime, const StageSettings& settings,
                                   StageProgram& program, PassCopier& copier);

}  // namespace shardfit::program
