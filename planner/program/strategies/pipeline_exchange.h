#pragma once
// What neighbouring stages send one another (megatron/core/pipeline_parallel/p2p_communication.py).
// Each direction has a stream of its own, as the four exchanges of a batch run side by side.

#include <cstdint>
#include <deque>
#include <vector>

#include "tensor/runtime.h"

namespace shardfit::program {

class PipelineExchange {
 public:
  PipelineExchange(tensor::Runtime& runtime, std::vector<std::int32_t> ranks, std::int64_t stage,
                   tensor::Shape shape, DType dtype);

  // Each ends only when the exchange has (batch_p2p_comm with its synchronization).
  tensor::Tensor receive_forward(bool first_stage);
  tensor::Tensor receive_backward(bool last_stage);
  void send_forward(const tensor::Tensor& output, bool last_stage);
  void send_backward(const tensor::Tensor& gradient, bool first_stage);
  tensor::Tensor send_forward_receive_backward(const tensor::Tensor& output, bool last_stage);
  tensor::Tensor send_backward_receive_forward(const tensor::Tensor& gradient, bool first_stage);
  tensor::Tensor send_forward_receive_forward(const tensor::Tensor& output, bool receive);
  tensor::Tensor send_backward_receive_backward(const tensor::Tensor& gradient, bool receive);

  // These go on in the background; await_* waits for the oldest receive not yet waited for, if any.
  tensor::Tensor overlapped_forward(const tensor::Tensor& output, bool receive);
  tensor::Tensor overlapped_backward(const tensor::Tensor& gradient, bool receive);
  void await_forward();
  void await_backward();

 private:
  enum Direction { send_next, receive_previous, send_previous, receive_next };
  tensor::Tensor fresh();
  /// Queues one exchange and gives the event of its end.
  std::uint32_t start(Direction direction, std::int64_t bytes);
  void finish(const std::vector<std::uint32_t>& events);
  std::int64_t bytes_of(const tensor::Tensor& tensor) const;

  tensor::Runtime& runtime_;
  std::vector<std::int32_t> ranks_;
  std::int64_t stage_;
  tensor::Shape shape_;
  DType dtype_;
  std::uint32_t group_ = 0;
  std::deque<std::uint32_t> forward_pending_, backward_pending_;
};

}  // namespace shardfit::program
