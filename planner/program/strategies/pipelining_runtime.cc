// Schedules of several stages a rank: their actions, one by one
// (torch/distributed/pipelining/schedules.py, _PipelineScheduleRuntime).

#include <map>
#include <stdexcept>

#include "program/strategies/pipelining_schedule.h"

namespace shardfit::program::pipelining {
namespace {

using tensor::Runtime;
using tensor::Tensor;

class ActionSchedule : public Schedule {
 public:
  ActionSchedule(Runtime& runtime, std::vector<std::unique_ptr<Stage>> stages,
                 std::int64_t micro_batches, Loss loss, std::vector<PipelineAction> actions)
      : Schedule(runtime, std::move(stages), micro_batches, std::move(loss)),
        actions_(std::move(actions)) {}

 protected:
  void passes() override {
    std::vector<Works> sent;  // handles live to the end
    for (const PipelineAction& action : actions_) perform(action, sent);
    for (; !sent.empty(); sent.pop_back()) wait(sent.back());
  }

 private:
  Stage* held(std::int64_t index) {
    for (const auto& stage : stages_) {
      if (stage->index() == index) return stage.get();
    }
    return nullptr;
  }

  void perform(const PipelineAction& a, std::vector<Works>& sent) {
    Stage& stage = *held(a.stage);
    StageSharding* sharding = stage.sharding();
    const auto key = std::make_pair(a.stage, a.micro_batch);
    switch (a.kind) {
      case ActionKind::send_forward:
        sent.push_back(begin(stage.forward_sends(a.micro_batch)));
        return;
      case ActionKind::send_backward:
        sent.push_back(begin(stage.backward_sends(a.micro_batch)));
        return;
      case ActionKind::receive_forward:
        forward_receives_[key] = begin(stage.forward_receives(a.micro_batch));
        return;
      case ActionKind::receive_backward:
        backward_receives_[key] = begin(stage.backward_receives(a.micro_batch));
        return;
      case ActionKind::unshard:
        if (sharding) sharding->unshard();
        return;
      case ActionKind::reshard:
        if (sharding) sharding->reshard();
        return;
      case ActionKind::reduce_gradients:
        reduce_gradients(stage);
        return;
      default:
        if (sharding) sharding->await_unshard();
        pass(a, stage);
    }
  }

  void pass(const PipelineAction& a, Stage& stage) {
    if (a.kind == ActionKind::backward_weight) return stage.backward_weight(a.micro_batch);
    if (a.kind == ActionKind::forward) {
      await(forward_receives_, a);
      const Tensor output = forward(stage, a.micro_batch);
      add_loss(stage, output, a.micro_batch);
      if (stage.next_here()) held(a.stage + 1)->take_input(output, a.micro_batch);
      return;
    }
    await(backward_receives_, a);
    const Tensor loss = loss_of(stage, a.micro_batch);
    stage.backward(a.micro_batch, loss, a.kind == ActionKind::full_backward);
    if (!stage.previous_here()) return;
    held(a.stage - 1)->take_gradient(stage.give_gradient(a.micro_batch), a.micro_batch);
  }

  using Receives = std::map<std::pair<std::int64_t, std::int64_t>, Works>;
  void await(Receives& receives, const PipelineAction& a) {
    const auto at = receives.find({a.stage, a.micro_batch});
    if (at == receives.end()) return;  // the first, or from a stage of this rank
    wait(at->second);
    receives.erase(at);
  }

  std::vector<PipelineAction> actions_;
  Receives forward_receives_, backward_receives_;
};

}  // namespace

std::unique_ptr<Schedule> make_runtime(Runtime& runtime, std::vector<std::unique_ptr<Stage>> stages,
                                       std::int64_t micro_batches, Loss loss,
                                       std::vector<PipelineAction> actions) {
  return std::make_unique<ActionSchedule>(runtime, std::move(stages), micro_batches,
                                          std::move(loss), std::move(actions));
}

}  // namespace shardfit::program::pipelining
