#pragma once
// torchtitan's pipeline on one rank: the stages it holds, sharded each by itself, and their
// schedule (torchtitan v0.2.2, torchtitan/distributed/pipeline_parallel.py, torchtitan/train.py).

#include <memory>
#include <vector>

#include "program/strategies/pipelining_schedule.h"
#include "program/training.h"

namespace shardfit::program {

/// The stages of this rank, built one after the other.
std::vector<const model::Module*> build_titan_stages(const TrainingJob& job,
                                                     model::Machine& machine,
                                                     const model::CompiledClass& model);

/// What shards the stages, for the loop one strategy: `schedule` runs a step.
class TitanPipeline : public Strategy {
 public:
  TitanPipeline(const TrainingJob& job, model::Machine& machine,
                std::vector<const model::Module*> roots);

  /// Every stage is sharded, then given memory; `root` is the first.
  void wrap(const model::Module& root) override;
  void before_forward(bool) override {}
  void after_forward(bool, model::Value&) override {}
  tensor::Tensor clip(const std::vector<tensor::Tensor>& parameters, bool foreach) override;

  /// Trainer.forward_backward_step: a list of the losses of the micro-batches, where this rank has
  /// them.
  model::Value run_step(const tensor::Tensor& tokens, const tensor::Tensor& labels);

  /// Parameters of each stage's own optimizer (OptimizersContainer).
  std::vector<std::vector<tensor::Tensor>> optimizer_groups() const;

 private:
  std::unique_ptr<pipelining::Stage> make_stage(std::size_t i);
  /// init_weights: buffers that the device computes.
  void make_buffers(const model::Module& root);
  void make_schedule(std::vector<std::unique_ptr<pipelining::Stage>> stages,
                     const pipelining::Loss& loss);

  const TrainingJob& job_;
  model::Machine& machine_;
  std::vector<const model::Module*> roots_;
  std::vector<std::unique_ptr<Strategy>> shardings_;  // of each stage; null: none
  std::unique_ptr<model::ModuleHooks> hooks_;         // of all stages
  std::unique_ptr<pipelining::Schedule> schedule_;
};

}  // namespace shardfit::program
