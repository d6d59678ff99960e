#include "program/strategies/pipeline_exchange.h"

namespace shardfit::program {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

PipelineExchange::PipelineExchange(Runtime& runtime, std::vector<std::int32_t> ranks,
                                   std::int64_t stage, Shape shape, DType dtype)
    : runtime_(runtime), ranks_(std::move(ranks)), stage_(stage), shape_(shape), dtype_(dtype) {
  if (ranks_.size() > 1) group_ = runtime_.group(ranks_);
}

Tensor PipelineExchange::fresh() {
  const Scoped<const char*> label(runtime_.label.kind, "receive");
  Tensor buffer = runtime_.empty(shape_, dtype_);
  buffer->leaf_requires_grad = true;
  runtime_.set_category(buffer, Category::activation);
  return buffer;
}

std::int64_t PipelineExchange::bytes_of(const Tensor& tensor) const {
  return tensor ? tensor.count() * element_size(tensor.dtype())
                : shape_.count() * element_size(dtype_);
}

std::uint32_t PipelineExchange::start(Direction direction, std::int64_t bytes) {
  static const char* const streams[] = {"send next", "receive previous", "send previous",
                                        "receive next"};
  const auto stages = static_cast<std::int64_t>(ranks_.size());
  const bool next = direction == send_next || direction == receive_next;
  const std::int64_t peer = (stage_ + (next ? 1 : stages - 1)) % stages;
  Collective collective;
  const bool sends = direction == send_next || direction == send_previous;
  collective.kind = sends ? CollectiveKind::send : CollectiveKind::receive;
  collective.dtype = dtype_;
  collective.bytes = bytes;
  collective.group = group_;
  collective.peer = ranks_[static_cast<std::size_t>(peer)];
  return runtime_.exchange(collective, runtime_.stream(streams[direction]));
}

void PipelineExchange::finish(const std::vector<std::uint32_t>& events) {
  for (std::uint32_t event : events) runtime_.wait_event(event, runtime_.current_stream);
  for (std::uint32_t event : events) runtime_.host_wait(event);
}

Tensor PipelineExchange::receive_forward(bool first_stage) {
  if (first_stage) return {};
  Tensor input = fresh();
  finish({start(receive_previous, bytes_of(input))});
  return input;
}

Tensor PipelineExchange::receive_backward(bool last_stage) {
  if (last_stage) return {};
  Tensor gradient = fresh();
  finish({start(receive_next, bytes_of(gradient))});
  return gradient;
}

void PipelineExchange::send_forward(const Tensor& output, bool last_stage) {
  if (!last_stage) finish({start(send_next, bytes_of(output))});
}

void PipelineExchange::send_backward(const Tensor& gradient, bool first_stage) {
  if (!first_stage) finish({start(send_previous, bytes_of(gradient))});
}

Tensor PipelineExchange::send_forward_receive_backward(const Tensor& output, bool last_stage) {
  if (last_stage) return {};
  Tensor gradient = fresh();
  const std::uint32_t sent = start(send_next, bytes_of(output));
  finish({sent, start(receive_next, bytes_of(gradient))});
  return gradient;
}

Tensor PipelineExchange::send_backward_receive_forward(const Tensor& gradient, bool first_stage) {
  if (first_stage) return {};
  Tensor input = fresh();
  const std::uint32_t sent = start(send_previous, bytes_of(gradient));
  finish({sent, start(receive_previous, bytes_of(input))});
  return input;
}

Tensor PipelineExchange::send_forward_receive_forward(const Tensor& output, bool receive) {
  const Tensor input = receive ? fresh() : Tensor();
  std::vector<std::uint32_t> events;
  if (output) events.push_back(start(send_next, bytes_of(output)));
  if (input) events.push_back(start(receive_previous, bytes_of(input)));
  finish(events);
  return input;
}

Tensor PipelineExchange::send_backward_receive_backward(const Tensor& gradient, bool receive) {
  const Tensor received = receive ? fresh() : Tensor();
  std::vector<std::uint32_t> events;
  if (gradient) events.push_back(start(send_previous, bytes_of(gradient)));
  if (received) events.push_back(start(receive_next, bytes_of(received)));
  finish(events);
  return received;
}

Tensor PipelineExchange::overlapped_forward(const Tensor& output, bool receive) {
  const Tensor input = receive ? fresh() : Tensor();
  if (output) start(send_next, bytes_of(output));
  if (input) forward_pending_.push_back(start(receive_previous, bytes_of(input)));
  return input;
}

Tensor PipelineExchange::overlapped_backward(const Tensor& gradient, bool receive) {
  const Tensor received = receive ? fresh() : Tensor();
  if (gradient) start(send_previous, bytes_of(gradient));
  if (received) backward_pending_.push_back(start(receive_next, bytes_of(received)));
  return received;
}

namespace {

void await_oldest(Runtime& runtime, std::deque<std::uint32_t>& pending) {
  if (pending.empty()) return;
  runtime.wait_event(pending.front(), runtime.current_stream);
  pending.pop_front();
}

}  // namespace

void PipelineExchange::await_forward() { await_oldest(runtime_, forward_pending_); }
void PipelineExchange::await_backward() { await_oldest(runtime_, backward_pending_); }

}  // namespace shardfit::program
