#include "program/strategies/pipelining_schedule.h"

#include <algorithm>

#include "tensor/ops.h"

namespace shardfit::program::pipelining {

using tensor::Runtime;
using tensor::Tensor;

namespace {

/// The batch's parts, one a micro-batch (microbatch.py, _split_tensor).
std::vector<Tensor> parts_of(const Tensor& batch, std::int64_t count) {
  std::vector<Tensor> parts(static_cast<std::size_t>(count));
  if (!batch) return parts;
  const std::int64_t each = batch.size(0) / count;
  for (std::int64_t i = 0; i < count; ++i) {
    parts[static_cast<std::size_t>(i)] = tensor::slice(batch, 0, i * each, (i + 1) * each);
  }
  return parts;
}

}  // namespace

Schedule::Schedule(Runtime& runtime, std::vector<std::unique_ptr<Stage>> stages,
                   std::int64_t micro_batches, Loss loss)
    : runtime_(runtime),
      stages_(std::move(stages)),
      micro_batches_(micro_batches),
      loss_(std::move(loss)) {}

std::vector<Tensor> Schedule::step(const Tensor& tokens, const Tensor& labels) {
  for (const auto& stage : stages_) stage->clear();
  tokens_ = parts_of(tokens, micro_batches_);
  labels_ = parts_of(labels, micro_batches_);
  if (!std::exchange(initialized_, true)) initialize();
  passes();
  std::vector<Tensor> losses = std::move(losses_);
  losses_.clear();
  tokens_.clear();
  labels_.clear();
  return losses;
}

/// _initialize_pp_stages
void Schedule::initialize() {
  {
    Tensor vote;
    for (const auto& stage : stages_) vote = stage->vote(vote);
    Tensor result = vote;
    for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
      result = (*stage)->result_of_vote(result);
    }
  }
  for (const auto& stage : stages_) stage->prepare_forward(tokens_.front());
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    (*stage)->prepare_backward(loss_, labels_.front());
  }
  for (const auto& stage : stages_) stage->forget_passes();
}

Tensor Schedule::forward(Stage& stage, std::int64_t micro_batch) {
  return stage.forward(micro_batch, tokens_[static_cast<std::size_t>(micro_batch)]);
}

void Schedule::add_loss(const Stage& stage, const Tensor& output, std::int64_t micro_batch) {
  if (!stage.last()) return;
  losses_.push_back(loss_(output, labels_[static_cast<std::size_t>(micro_batch)]));
}

Tensor Schedule::loss_of(const Stage& stage, std::int64_t micro_batch) const {
  return stage.last() ? losses_[static_cast<std::size_t>(micro_batch)] : Tensor();
}

namespace {

class GPipe : public Schedule {
 public:
  using Schedule::Schedule;

 protected:
  void passes() override {
    Tensor output, loss;
    // Lists of handles, which live to the end.
    std::vector<Works> sent, sent_back;
    for (std::int64_t i = 0; i < micro_batches_; ++i) {
      wait(begin(stage().forward_receives(i)));
      output = forward(stage(), i);
      sent.push_back(begin(stage().forward_sends(i)));
      add_loss(stage(), output, i);
    }
    for (const Works& works : sent) wait(works);
    for (std::int64_t i = 0; i < micro_batches_; ++i) {
      wait(begin(stage().backward_receives(i)));
      loss = loss_of(stage(), i);
      stage().backward(i, loss);
      sent_back.push_back(begin(stage().backward_sends(i)));
    }
    for (const Works& works : sent_back) wait(works);
    reduce_gradients(stage());
  }
};

class OneForwardOneBackward : public Schedule {
 public:
  using Schedule::Schedule;

 protected:
  /// Names that hold tensors longer than they need to are Schedule1F1B's own.
  void passes() override {
    Tensor output, loss;
    Transfers sends, sends_back;
    Works sent;
    const std::int64_t warmup = std::min(micro_batches_, stage().stages() - stage().index());
    std::int64_t next = 0;
    for (; next < warmup; ++next) {
      wait(begin(stage().forward_receives(next)));
      output = forward(stage(), next);
      wait(sent);
      sends = stage().forward_sends(next);
      if (next != warmup - 1) sent = begin(sends);
      add_loss(stage(), output, next);
    }
    std::int64_t done = 0;
    Transfers receives, receives_back;
    while (true) {
      receives_back = stage().backward_receives(done);
      wait(begin(joined(sends, receives_back)));
      loss = loss_of(stage(), done);
      stage().backward(done, loss);
      sends_back = stage().backward_sends(done);
      ++done;
      if (next == micro_batches_) break;
      receives = stage().forward_receives(next);
      wait(begin(joined(sends_back, receives)));
      output = forward(stage(), next);
      add_loss(stage(), output, next);
      sends = stage().forward_sends(next);
      ++next;
    }
    sent = begin(sends_back);
    for (; done < micro_batches_; ++done) {
      wait(begin(stage().backward_receives(done)));
      loss = loss_of(stage(), done);
      stage().backward(done, loss);
      wait(sent);
      sends_back = stage().backward_sends(done);
      sent = begin(sends_back);
    }
    wait(sent);
    reduce_gradients(stage());
  }

 private:
  static Transfers joined(Transfers a, const Transfers& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
};

}  // namespace

std::unique_ptr<Schedule> make_gpipe(Runtime& runtime, std::vector<std::unique_ptr<Stage>> stages,
                                     std::int64_t micro_batches, Loss loss) {
  return std::make_unique<GPipe>(runtime, std::move(stages), micro_batches, std::move(loss));
}

std::unique_ptr<Schedule> make_one_forward_one_backward(Runtime& runtime,
                                                        std::vector<std::unique_ptr<Stage>> stages,
                                                        std::int64_t micro_batches, Loss loss) {
  return std::make_unique<OneForwardOneBackward>(runtime, std::move(stages), micro_batches,
                                                 std::move(loss));
}

}  // namespace shardfit::program::pipelining
