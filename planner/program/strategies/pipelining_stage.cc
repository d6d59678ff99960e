#include "program/strategies/pipelining_stage.h"

#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program::pipelining {

using model::Value;
using tensor::Label;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

Stage::Stage(model::Machine& machine, const model::Module& root, StageSharding* sharding,
             StageSettings settings)
    : machine_(machine),
      runtime_(machine.runtime),
      root_(root),
      sharding_(sharding),
      settings_(std::move(settings)),
      group_(runtime_.group(settings_.ranks)) {}

Tensor Stage::vote(const Tensor& received) const {
  const Tensor own = runtime_.empty(Shape{1}, DType::i32);
  if (first()) return own;
  if (here(index() - 1)) return tensor::mul(received, own);
  const Tensor before = runtime_.empty(Shape{1}, DType::i32);
  return tensor::mul(before, own);
}

Tensor Stage::result_of_vote(const Tensor& received) const {
  if (last() || here(index() + 1)) return received;
  return runtime_.empty(Shape{1}, DType::i32);
}

Tensor Stage::buffer(bool wants_gradient) const {
  const Scoped<const char*> label(runtime_.label.kind, "receive");
  Tensor made = runtime_.empty(settings_.exchanged, settings_.dtype);
  made->leaf_requires_grad = wants_gradient;
  runtime_.set_category(made, Category::activation);
  return made;
}

Tensor Stage::run(const Tensor& input) {
  return machine_.call(root_, model::ValueList{Value::of(input)}).tensor;
}

void Stage::prepare_forward(const Tensor& tokens) {
  inferred_.input = first() ? tensor::detach(tokens) : buffer(true);
  inferred_.output = run(inferred_.input);
  if (first()) return;
  for (std::int64_t i = 0; i < settings_.micro_batches; ++i) received_.push_back(buffer(false));
}

void Stage::prepare_backward(const Loss& loss_of, const Tensor& labels) {
  {
    const Pass pass = std::exchange(inferred_, {});
    const Scoped<Label> label(runtime_.label, {"ones_like", 0, true});
    Tensor end = pass.output;
    if (last()) end = loss_of(pass.output, tensor::detach(labels));
    // A loss gets its gradient when it is asked for one, an output is given one.
    const bool asks = !first();
    Tensor ones;
    if (asks || !last()) ones = runtime_.empty(end.shape(), end.dtype());
    if (asks) {
      tensor::GradientsAsked asked;
      asked.roots = {{end->grad_fn, end->output}};
      asked.gradients = {ones};
      asked.wanted = {pass.input->accumulator};
      tensor::gradients_of(asked);
    }
  }
  if (last()) return;
  for (std::int64_t i = 0; i < settings_.micro_batches; ++i) {
    received_gradients_.push_back(buffer(false));
  }
}

void Stage::forget_passes() {
  inferred_ = {};
  if (sharding_) sharding_->forget_passes();
}

Tensor Stage::forward(std::int64_t micro_batch, const Tensor& tokens) {
  Pass pass;
  pass.input = first() ? tokens : received_[static_cast<std::size_t>(micro_batch)];
  if (!first()) pass.input->leaf_requires_grad = true;
  pass.output = run(pass.input);
  Tensor output = pass.output;
  forwards_[micro_batch] = std::move(pass);
  return output;
}

Tensor Stage::full_backward(const Tensor& end, const Tensor& gradient, const Tensor& input) {
  if (sharding_) sharding_->before_backward_pass();
  const Scoped<Label> label(runtime_.label, {"ones_like", 0, true});
  {
    const Tensor given = gradient ? gradient : runtime_.empty(end.shape(), end.dtype());
    tensor::run_backward(end, given);
  }
  return std::exchange(input->grad, {});
}

void Stage::backward(std::int64_t micro_batch, const Tensor& loss, bool full) {
  const auto at = forwards_.find(micro_batch);
  const Pass pass = std::move(at->second);
  forwards_.erase(at);
  const Tensor end = last() ? loss : pass.output;
  const Tensor gradient =
      last() ? Tensor() : received_gradients_[static_cast<std::size_t>(micro_batch)];
  if (full) {
    input_gradients_[micro_batch] = full_backward(end, gradient, pass.input);
  } else {
    Deferred deferred{pass.input, end, gradient, {}};
    if (!first()) {
      if (sharding_) sharding_->before_backward_pass();
      const Scoped<Label> label(runtime_.label, {"ones_like", 0, true});
      const Tensor given = gradient ? gradient : runtime_.empty(end.shape(), end.dtype());
      input_gradients_[micro_batch] =
          backward_of_input(end, given, pass.input, machine_.parameters(root_), deferred.groups);
    } else {
      input_gradients_[micro_batch] = {};
    }
    deferred_[micro_batch] = std::move(deferred);
  }
  // What the loss was made of is given back to nobody: its history goes (detach_).
  if (last() && !first() && !pass.output->base) pass.output->grad_fn = {};
}

/// The first stage has no input that a gradient leads to: it runs all of it now.
void Stage::backward_weight(std::int64_t micro_batch) {
  const auto at = deferred_.find(micro_batch);
  Deferred deferred = std::move(at->second);
  deferred_.erase(at);
  if (first()) {
    full_backward(deferred.end, deferred.gradient, deferred.input);
    return;
  }
  if (sharding_) sharding_->before_backward_pass();
  const Scoped<Label> label(runtime_.label, {"weight_gradients", 0, true});
  backward_of_weights(deferred.groups);
}

void Stage::take_input(const Tensor& output, std::int64_t micro_batch) {
  received_[static_cast<std::size_t>(micro_batch)] = tensor::detach(output);
}

void Stage::take_gradient(Tensor gradient, std::int64_t micro_batch) {
  received_gradients_[static_cast<std::size_t>(micro_batch)] = std::move(gradient);
}

Tensor Stage::give_gradient(std::int64_t micro_batch) {
  const auto at = input_gradients_.find(micro_batch);
  Tensor gradient = std::move(at->second);
  input_gradients_.erase(at);
  return gradient;
}

Transfers Stage::forward_receives(std::int64_t micro_batch) const {
  if (first()) return {};
  return {transfer(received_[static_cast<std::size_t>(micro_batch)], index() - 1, false)};
}

Transfers Stage::forward_sends(std::int64_t micro_batch) const {
  if (last()) return {};
  const Tensor& output = forwards_.at(micro_batch).output;
  return {transfer(tensor::detach(output), index() + 1, true)};
}

Transfers Stage::backward_receives(std::int64_t micro_batch) const {
  if (last()) return {};
  return {transfer(received_gradients_[static_cast<std::size_t>(micro_batch)], index() + 1, false)};
}

Transfers Stage::backward_sends(std::int64_t micro_batch) {
  if (first()) return {};
  return {transfer(give_gradient(micro_batch), index() - 1, true)};
}

void Stage::clear() {
  forwards_.clear();
  for (const Tensor& t : received_) t->grad.reset();
}

Works begin(Runtime& runtime, const Transfers& transfers) {
  Works works;
  bool sends = false;
  bool receives = false;
  for (const Transfer& t : transfers) (t.sends ? sends : receives) = true;
  for (const Transfer& t : transfers) {
    Collective collective;
    collective.kind = t.sends ? CollectiveKind::send : CollectiveKind::receive;
    collective.dtype = t.tensor.dtype();
    collective.bytes = runtime.info(t.tensor).bytes;
    collective.group = t.group;
    collective.peer = t.peer;
    const std::string peer = std::to_string(t.peer);
    const std::uint8_t on =
        runtime.stream(sends && receives ? "pipeline" : "pipeline with rank " + peer);
    works.events.push_back(runtime.exchange(collective, on));
    if (!(sends && receives)) works.tensors.push_back(t.tensor);
  }
  return works;
}

void wait(Runtime& runtime, const Works& works) {
  for (const std::uint32_t event : works.events) runtime.wait_event(event, runtime.current_stream);
}

}  // namespace shardfit::program::pipelining
