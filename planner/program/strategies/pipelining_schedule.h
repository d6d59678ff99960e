#pragma once
// Schedules of torch.distributed.pipelining: one step of a rank's stages over its micro-batches
// (torch/distributed/pipelining/schedules.py).

#include <memory>
#include <vector>

#include "program/pipelining_actions.h"
#include "program/strategies/pipelining_stage.h"

namespace shardfit::program::pipelining {

class Schedule {
 public:
  Schedule(tensor::Runtime& runtime, std::vector<std::unique_ptr<Stage>> stages,
           std::int64_t micro_batches, Loss loss);
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  /// The losses of the micro-batches, where this rank has the last stage. `tokens` and `labels` are
  /// of the whole batch: each micro-batch is a view of them.
  std::vector<tensor::Tensor> step(const tensor::Tensor& tokens, const tensor::Tensor& labels);

 protected:
  /// The rest of _step_microbatches, up to the exchange of gradients: its names live until that is
  /// over.
  virtual void passes() = 0;
  /// perform_reduce_grad
  static void reduce_gradients(const Stage& stage) {
    if (stage.sharding()) stage.sharding()->reduce_gradients();
  }
  Stage& stage(std::size_t i = 0) { return *stages_[i]; }
  tensor::Tensor forward(Stage& stage, std::int64_t micro_batch);
  /// _maybe_compute_loss
  void add_loss(const Stage& stage, const tensor::Tensor& output, std::int64_t micro_batch);
  /// _maybe_get_loss
  tensor::Tensor loss_of(const Stage& stage, std::int64_t micro_batch) const;
  Works begin(const Transfers& transfers) { return pipelining::begin(runtime_, transfers); }
  void wait(const Works& works) { pipelining::wait(runtime_, works); }

  tensor::Runtime& runtime_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::int64_t micro_batches_;

 private:
  void initialize();

  Loss loss_;
  bool initialized_ = false;
  std::vector<tensor::Tensor> tokens_, labels_, losses_;
};

/// ScheduleGPipe, Schedule1F1B, both of one stage
std::unique_ptr<Schedule> make_gpipe(tensor::Runtime& runtime,
                                     std::vector<std::unique_ptr<Stage>> stages,
                                     std::int64_t micro_batches, Loss loss);
std::unique_ptr<Schedule> make_one_forward_one_backward(tensor::Runtime& runtime,
                                                        std::vector<std::unique_ptr<Stage>> stages,
                                                        std::int64_t micro_batches, Loss loss);
/// _PipelineScheduleRuntime: the actions of one rank, one by one.
std::unique_ptr<Schedule> make_runtime(tensor::Runtime& runtime,
                                       std::vector<std::unique_ptr<Stage>> stages,
                                       std::int64_t micro_batches, Loss loss,
                                       std::vector<PipelineAction> actions);

}  // namespace shardfit::program::pipelining
