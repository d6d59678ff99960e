#pragma once
// A stage of torch.distributed.pipelining: what it keeps of each micro-batch, what it sends and
// receives (torch/distributed/pipelining/stage.py, PipelineStage).

#include <functional>
#include <map>
#include <vector>

#include "program/strategies/pipelining_backward.h"
#include "program/strategy.h"

namespace shardfit::program::pipelining {

/// One send or receive (torch.distributed.P2POp): it holds its tensor.
struct Transfer {
  tensor::Tensor tensor;
  std::int32_t peer = -1;
  bool sends = false;
  std::uint32_t group = 0;
};
using Transfers = std::vector<Transfer>;

/// Handles of transfers that have begun. A handle holds its tensor as long as it is held itself
/// (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, pointToPoint: a work's outputs).
struct Works {
  std::vector<tensor::Tensor> tensors;
  std::vector<std::uint32_t> events;
};

struct StageSettings {
  std::int64_t index = 0, stages = 1;
  std::int64_t micro_batches = 1;
  std::vector<std::int32_t> ranks;  // of all stages
  std::int32_t rank = 0;            // this one
  tensor::Shape exchanged;          // what goes from stage to stage, of a micro-batch
  DType dtype = DType::bf16;
};

/// The loss of a prediction.
using Loss =
    std::function<tensor::Tensor(const tensor::Tensor& prediction, const tensor::Tensor& labels)>;

class Stage {
 public:
  /// `sharding` shares the stage's parameters; null: nothing does.
  Stage(model::Machine& machine, const model::Module& root, StageSharding* sharding,
        StageSettings settings);

  bool first() const { return settings_.index == 0; }
  bool last() const { return settings_.index == settings_.stages - 1; }
  /// The next stage is on this rank too: its tensors are handed over, not sent.
  bool next_here() const { return !last() && here(index() + 1); }
  bool previous_here() const { return !first() && here(index() - 1); }
  std::int64_t index() const { return settings_.index; }
  std::int64_t stages() const { return settings_.stages; }
  StageSharding* sharding() const { return sharding_; }

  // Before the first step: all stages agree that shapes are to be found out, then run a pass for
  // them, whose tensors are of the first micro-batch's shape.
  /// _warmup_forward_vote
  tensor::Tensor vote(const tensor::Tensor& received) const;
  /// _warmup_backward_result
  tensor::Tensor result_of_vote(const tensor::Tensor& received) const;
  /// _prepare_forward_infra: a forward, then memory for what is received of each micro-batch.
  void prepare_forward(const tensor::Tensor& tokens);
  /// _prepare_backward_infra: the gradient of the input alone, then the same for gradients. The
  /// messages that tell shapes are not modelled.
  void prepare_backward(const Loss& loss, const tensor::Tensor& labels);
  /// _post_metadata_inference_cleanup
  void forget_passes();

  /// forward_one_chunk; `tokens` is for the first stage.
  tensor::Tensor forward(std::int64_t micro_batch, const tensor::Tensor& tokens);
  /// backward_one_chunk; not in full: the gradient of the input only.
  void backward(std::int64_t micro_batch, const tensor::Tensor& loss, bool full = true);
  /// backward_weight_one_chunk: the rest of one that was not in full.
  void backward_weight(std::int64_t micro_batch);

  Transfers forward_receives(std::int64_t micro_batch) const;
  Transfers forward_sends(std::int64_t micro_batch) const;
  Transfers backward_receives(std::int64_t micro_batch) const;
  Transfers backward_sends(std::int64_t micro_batch);
  /// set_local_fwd_input, set_local_bwd_input, get_local_bwd_output
  void take_input(const tensor::Tensor& output, std::int64_t micro_batch);
  void take_gradient(tensor::Tensor gradient, std::int64_t micro_batch);
  tensor::Tensor give_gradient(std::int64_t micro_batch);

  /// clear_runtime_states
  void clear();

 private:
  struct Pass {
    tensor::Tensor output, input;
  };
  /// A backward pass of which the second part is to come (backward_state).
  struct Deferred {
    tensor::Tensor input, end, gradient;
    std::vector<WeightGroup> groups;
  };
  tensor::Tensor run(const tensor::Tensor& input);
  tensor::Tensor buffer(bool wants_gradient) const;
  /// stage_backward; the gradient of the input.
  tensor::Tensor full_backward(const tensor::Tensor& end, const tensor::Tensor& gradient,
                               const tensor::Tensor& input);
  Transfer transfer(const tensor::Tensor& tensor, std::int64_t with, bool sends) const {
    return {tensor, rank_of(with), sends, group_};
  }
  std::int32_t rank_of(std::int64_t stage) const {
    return settings_.ranks[static_cast<std::size_t>(stage)];
  }
  bool here(std::int64_t stage) const { return rank_of(stage) == settings_.rank; }

  model::Machine& machine_;
  tensor::Runtime& runtime_;
  const model::Module& root_;
  StageSharding* sharding_;
  StageSettings settings_;
  std::uint32_t group_;
  Pass inferred_;
  std::map<std::int64_t, Pass> forwards_;                   // fwd_cache
  std::map<std::int64_t, tensor::Tensor> input_gradients_;  // bwd_cache
  std::map<std::int64_t, Deferred> deferred_;
  std::vector<tensor::Tensor> received_, received_gradients_;
};

/// Begins transfers: those of one direction by themselves, others as one (schedules.py,
/// _batch_p2p).
Works begin(tensor::Runtime& runtime, const Transfers& transfers);
void wait(tensor::Runtime& runtime, const Works& works);

}  // namespace shardfit::program::pipelining
