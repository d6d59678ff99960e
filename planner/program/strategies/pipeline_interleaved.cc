#include "program/strategies/pipeline_stage.h"

#include <algorithm>

namespace shardfit::program {

using tensor::Tensor;

InterleavedRun::InterleavedRun(tensor::Runtime& runtime, const StageSettings& settings,
                               StageProgram& program, PassCopier& copier)
    : StageRun(runtime, settings, program, copier),
      order_(forward_order(shape_)),
      total_(static_cast<std::int64_t>(order_.size())),
      warmup_(warmup_passes(shape_)),
      steady_(total_ - warmup_) {
  const auto chunks = static_cast<std::size_t>(shape_.chunks);
  for (auto* queues : {&inputs_, &outputs_, &output_gradients_}) queues->resize(chunks);
  begun_.resize(chunks);
  ended_.resize(chunks);
}

std::int64_t InterleavedRun::chunk_of(std::int64_t pass, bool forward) const {
  const std::int64_t chunk = order_[static_cast<std::size_t>(pass % total_)].chunk;
  return forward ? chunk : shape_.chunks - 1 - chunk;
}

std::optional<std::int64_t> InterleavedRun::coming(std::int64_t pass, bool forward) const {
  const bool leading = forward ? first_stage() : last_stage();
  if (!leading) return chunk_of(pass + 1, forward);
  if (pass < shape_.stages - 1) return std::nullopt;
  const std::int64_t chunk = chunk_of(pass - (shape_.stages - 1), forward);
  if (chunk == (forward ? shape_.chunks - 1 : 0)) return std::nullopt;
  return chunk + (forward ? 1 : -1);
}

Tensor InterleavedRun::forward(std::int64_t pass) {
  const std::int64_t chunk = chunk_of(pass, true);
  const auto c = static_cast<std::size_t>(chunk);
  if (enters(chunk) && inputs_[c].size() == outputs_[c].size()) inputs_[c].emplace_back();
  const Tensor input = inputs_[c][static_cast<std::size_t>(begun_[c] - ended_[c])];
  ++begun_[c];
  Tensor tokens;
  Tensor made = forward_step(chunk, input, tokens);
  outputs_[c].push_back(made);
  return made;
}

Tensor InterleavedRun::backward(std::int64_t pass) {
  const std::int64_t chunk = chunk_of(pass, false);
  const auto c = static_cast<std::size_t>(chunk);
  if (leaves(chunk) && output_gradients_[c].empty()) output_gradients_[c].emplace_back();
  const auto taken = [](Queue& queue) {
    Tensor first = std::move(queue.front());
    queue.pop_front();
    return first;
  };
  const Tensor input = taken(inputs_[c]);
  const Tensor made = taken(outputs_[c]);
  const Tensor gradient = taken(output_gradients_[c]);
  ++ended_[c];
  Tensor scaled = made;
  return backward_step(input, scaled, gradient);
}

void InterleavedRun::warm_up() {
  of(inputs_, 0).push_back(exchange_.receive_forward(first_stage()));
  for (std::int64_t k = 0; k < warmup_; ++k) {
    std::optional<std::int64_t> next = coming(k, true);
    if (k == total_ - 1) next.reset();
    output_ = forward(k);
    if (leaves(chunk_of(k, true))) output_.reset();
    received_input_ = exchange_.send_forward_receive_forward(output_, next.has_value());
    if (next) of(inputs_, *next).push_back(received_input_);
    empty_output(output_);
  }
  if (warmup_ == 0 || steady_ == 0) return;
  backward_buffer_ = exchange_.overlapped_backward({}, !last_stage());
  if (last_stage()) return;
  awaited_.push_back(backward_buffer_);
  of(output_gradients_, shape_.chunks - 1).push_back(backward_buffer_);
}

void InterleavedRun::one_and_one(std::int64_t k) {
  const std::int64_t pass = k + warmup_;
  if (!enters(chunk_of(pass, true))) exchange_.await_forward();
  empty_output(output_);
  Tensor made = forward(pass);
  if (leaves(chunk_of(pass, true))) made.reset();
  std::optional<std::int64_t> next = coming(pass, true);
  if (k == steady_ - 1) next.reset();
  forward_buffer_ = exchange_.overlapped_forward(made, next.has_value());
  if (next) {
    of(inputs_, *next).push_back(forward_buffer_);
    forward_buffer_.reset();
  }
  if (!leaves(chunk_of(k, false)) && !awaited_.empty()) {
    exchange_.await_backward();
    awaited_.pop_front();
  }
  Tensor gradient = backward(k);
  if (enters(chunk_of(k, false))) gradient.reset();
  next = coming(k, false);
  backward_buffer_ = exchange_.overlapped_backward(gradient, next.has_value());
  if (next) {
    awaited_.push_back(backward_buffer_);
    of(output_gradients_, *next).push_back(backward_buffer_);
    backward_buffer_.reset();
  }
  output_ = std::move(made);
  input_gradient_ = std::move(gradient);
}

void InterleavedRun::flush() {
  if (steady_ == 0) {
    of(output_gradients_, shape_.chunks - 1).push_back(exchange_.receive_backward(last_stage()));
  }
  Tensor last_awaited;
  for (std::int64_t k = steady_; k < total_; ++k) {
    std::optional<std::int64_t> next = coming(k, false);
    if (k == total_ - 1) next.reset();
    if (!leaves(chunk_of(k, false)) && k != 0 && !awaited_.empty()) {
      exchange_.await_backward();
      last_awaited = std::move(awaited_.front());
      awaited_.pop_front();
    }
    Tensor gradient = backward(k);
    input_gradient_ = std::move(gradient);
    if (enters(chunk_of(k, false))) input_gradient_.reset();
    received_gradient_ =
        exchange_.send_backward_receive_backward(input_gradient_, next.has_value());
    if (next) of(output_gradients_, *next).push_back(received_gradient_);
  }
  program_.finalize();
}

void InterleavedRun::passes() {
  warm_up();
  // Chunks come round after so many passes.
  const std::int64_t round = shape_.stages * shape_.chunks;
  for (std::int64_t k = 0; k < steady_;) {
    copier_.begin();
    const std::int64_t end = std::min(k + round, steady_);
    while (k < end) one_and_one(k++);
    const std::int64_t copied = copier_.end((steady_ - k + round - 1) / round);
    k += copied * round;
    for (auto* counts : {&begun_, &ended_}) {
      for (std::int64_t& count : *counts) count += copied * shape_.stages;
    }
  }
  empty_output(output_);
  const Tensor last_sent = input_gradient_;  // its handle is held to the end
  flush();
}

}  // namespace shardfit::program
