#pragma once
// What all schedules of a stage share: a pass forward, a pass backward, outputs emptied
// (megatron/core/pipeline_parallel/schedules.py).

#include <deque>
#include <optional>
#include <vector>

#include "program/strategies/pipeline.h"
#include "program/strategies/pipeline_exchange.h"

namespace shardfit::program {

/// One step of a stage. Names that hold tensors longer than they need to are schedules.py's own.
class StageRun {
 public:
  StageRun(tensor::Runtime& runtime, const StageSettings& settings, StageProgram& program,
           PassCopier& copier);
  virtual ~StageRun() = default;
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;
  /// The reports of its micro-batches.
  model::ValueList run();

 protected:
  virtual void passes() = 0;
  bool first_stage() const { return shape_.stage == 0; }
  bool last_stage() const { return shape_.stage == shape_.stages - 1; }
  /// forward_step
  tensor::Tensor forward_step(std::int64_t chunk, const tensor::Tensor& input,
                              tensor::Tensor& tokens);
  /// backward_step with custom_backward: the gradient of the input, if there is one. The scaled
  /// loss takes the place of the loss.
  tensor::Tensor backward_step(const tensor::Tensor& input, tensor::Tensor& output,
                               const tensor::Tensor& gradient);
  /// deallocate_output_tensor: what was sent on is only needed for its history.
  void empty_output(const tensor::Tensor& output);

  tensor::Runtime& runtime_;
  const PipelineShape& shape_;
  StageProgram& program_;
  PipelineExchange exchange_;
  PassCopier& copier_;

 private:
  model::ValueList reports_;
};

/// forward_backward_pipelining_with_interleaving: sends and receives of the steady phase overlap
/// with passes (overlap_p2p_comm), those of warm-up and flush do not.
class InterleavedRun : public StageRun {
 public:
  InterleavedRun(tensor::Runtime& runtime, const StageSettings& settings, StageProgram& program,
                 PassCopier& copier);

 protected:
  void passes() override;

 private:
  using Queue = std::deque<tensor::Tensor>;

  std::int64_t chunk_of(std::int64_t pass, bool forward) const;
  bool enters(std::int64_t chunk) const { return chunk == 0 && first_stage(); }
  bool leaves(std::int64_t chunk) const { return chunk == shape_.chunks - 1 && last_stage(); }
  /// recv_tensor_from_previous_stage: the chunk for which something comes after this pass, if it
  /// does.
  std::optional<std::int64_t> coming(std::int64_t pass, bool forward) const;
  tensor::Tensor forward(std::int64_t pass);
  tensor::Tensor backward(std::int64_t pass);
  void warm_up();
  void one_and_one(std::int64_t k);
  void flush();
  static Queue& of(std::vector<Queue>& queues, std::int64_t chunk) {
    return queues[static_cast<std::size_t>(chunk)];
  }

  std::vector<PipelinePass> order_;
  std::int64_t total_, warmup_, steady_;
  std::vector<Queue> inputs_, outputs_, output_gradients_;
  std::vector<std::int64_t> begun_, ended_;  // passes of each chunk
  tensor::Tensor output_, input_gradient_, received_input_, received_gradient_;
  tensor::Tensor forward_buffer_, backward_buffer_;
  // A handle holds what it sends or receives as long as it is held itself
  // (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, pointToPoint: a work's outputs).
  Queue awaited_;
};

}  // namespace shardfit::program
