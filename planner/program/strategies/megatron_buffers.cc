#include "program/strategies/megatron_buffers.h"

#include <numeric>

namespace shardfit::program {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

std::int64_t padded(std::int64_t number, std::int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

/// A tensor in the buffer: a view of it, so that it lives as long as the buffer.
Tensor part(const Tensor& buffer, const Shape& shape) {
  return buffer.runtime().alias_of(buffer, shape, tensor::contiguous_strides(shape));
}

}  // namespace

/// Parameters last to first; with the distributed optimizer each begins at a multiple of 64 and
/// each bucket ends at one that all ranks divide evenly. A shared embedding has a bucket of its own
/// then.
void GradientBuffer::lay_out(bool sharded, std::vector<MegatronParameter>& parameters,
                             std::int64_t bucket_size, std::int64_t ranks) {
  std::int64_t at = 0;
  std::int64_t bucket_start = 0;
  bool filled = false;
  const auto close = [&](std::int64_t end) {
    const std::int64_t last = sharded ? padded(end, std::lcm(ranks, std::int64_t{128})) : end;
    buckets_.push_back({bucket_start, last});
    bucket_start = last;
    filled = false;
    return last;
  };
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    const bool alone = p->shared_embedding && sharded;
    if (sharded) at = padded(at, 64);
    if (alone && filled) at = close(at);
    p->start = at;
    p->end = at + p->tensor.count();
    filled = true;
    const bool full = bucket_size > 0 && p->end - bucket_start >= bucket_size;
    at = full || alone ? close(p->end) : p->end;
  }
  if (filled) close(at);
}

GradientBuffer::GradientBuffer(Runtime& runtime, const MegatronJob& job,
                               std::vector<MegatronParameter>& parameters, std::int64_t bucket_size,
                               std::int64_t ranks) {
  if (parameters.empty()) return;
  lay_out(job.distributed_optimizer, parameters, bucket_size, ranks);
  const Scoped<tensor::Label> label(runtime.label, {"gradient_buffer", 0, false});
  const std::int64_t count = buckets_.back().end;
  if (job.distributed_optimizer) {
    parameters_ = runtime.empty(Shape{count}, parameters.front().tensor.dtype());
    runtime.set_category(parameters_, Category::parameter);
  }
  const DType own = parameters.front().tensor.dtype();
  gradients_ = runtime.empty(Shape{count}, job.gradients == DType::f32 ? DType::f32 : own);
  runtime.set_category(gradients_, Category::gradient);
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    if (parameters_) runtime.rebase(p->tensor, part(parameters_, p->tensor.shape()));
    p->main_gradient = part(gradients_, p->tensor.shape());
  }
}

}  // namespace shardfit::program
