#include "program/strategies/megatron_optimizer.h"

#include <algorithm>
#include <stdexcept>

#include "tensor/ops.h"

namespace shardfit::program {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

Tensor part_of(const Tensor& whole, std::int64_t count) {
  return whole.runtime().alias_of(whole, Shape{count}, Shape{1});
}

}  // namespace

MegatronOptimizer::MegatronOptimizer(Runtime& runtime, const MegatronJob& job,
                                     const std::string& name, Implementation implementation,
                                     DType dtype, const std::vector<Chunk>& chunks)
    : runtime_(runtime),
      dtype_(dtype),
      fused_(implementation == Implementation::fused),
      sharded_(job.distributed_optimizer) {
  const Scoped<tensor::Label> label(runtime.label, {"optimizer", 0, false});
  const bool mixed = is_half(dtype) || job.distributed_optimizer;
  const bool has_overflow = mixed && dtype != DType::bf16;
  if (fused_) fused_overflow_ = state_of(runtime, {}, DType::i32);
  if (dtype == DType::f16) {
    scale_ = state_of(runtime, Shape{1}, DType::f32);
    found_infinite_ = state_of(runtime, Shape{1}, DType::f32);
  }
  if (has_overflow) overflow_ = state_of(runtime, {}, DType::i32);
  if (!scale_) scale_ = state_of(runtime, Shape{1}, DType::f32);
  groups_.resize(2);
  for (const Chunk& chunk : chunks) {
    make_groups(*chunk.parameters, *chunk.buffer, 0, job.data, job.data_rank());
  }
  make_main_parameters(0);
  if (job.expert > 1) {
    if (fused_) of_experts_.push_back(state_of(runtime, {}, DType::i32));
    if (has_overflow) of_experts_.push_back(state_of(runtime, {}, DType::i32));
    of_experts_.push_back(state_of(runtime, Shape{1}, DType::f32));
    if (dtype == DType::f16) of_experts_.push_back(state_of(runtime, Shape{1}, DType::f32));
    groups_.resize(4);
    for (const Chunk& chunk : chunks) {
      make_groups(*chunk.experts, *chunk.expert_buffer, 2, job.expert_data(),
                  job.expert_data_rank());
    }
    make_main_parameters(2);
  }
  for (std::size_t i = 0; i < groups_.size() && !fused_; ++i) {
    adam_.push_back(make_optimizer(name, implementation));
    if (!adam_.back()) throw std::runtime_error("no optimizer named '" + name + "'");
  }
}

/// Without the distributed optimizer: parameters in the model's order. With it: bucket by bucket,
/// in the buffer's order, what this rank's share of the bucket holds of each.
void MegatronOptimizer::make_groups(std::vector<MegatronParameter>& parameters,
                                    const GradientBuffer& buffer, std::size_t first,
                                    std::int64_t ranks, std::int64_t rank) {
  const auto group_of = [&](const MegatronParameter& p) -> std::vector<Part>& {
    return groups_[p.decays ? first : first + 1];
  };
  if (!sharded_) {
    for (MegatronParameter& p : parameters) {
      group_of(p).push_back({p.main_gradient, p.tensor, p.counted});
    }
    return;
  }
  for (const Bucket& bucket : buffer.buckets()) {
    const std::int64_t share = (bucket.end - bucket.start) / ranks;
    const std::int64_t start = bucket.start + rank * share;
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
      const std::int64_t count = std::min(p->end, start + share) - std::max(p->start, start);
      if (count <= 0) continue;
      group_of(*p).push_back(
          {part_of(p->main_gradient, count), part_of(p->tensor, count), p->counted});
    }
  }
}

void MegatronOptimizer::make_main_parameters(std::size_t first) {
  if (!is_half(dtype_)) return;
  for (std::size_t i = first; i < groups_.size(); ++i) {
    for (Part& part : groups_[i]) {
      const Tensor copy = tensor::clone(tensor::detach(part.main), true);
      part.main = tensor::to(copy, DType::f32);
      runtime_.set_category(part.main, Category::optimizer_state);
    }
  }
}

void MegatronOptimizer::zero_grad() {
  for (std::vector<Part>& group : groups_) {
    for (Part& part : group) part.main->grad.reset();
  }
}

/// Gradients in fp32 are the buffer's own; others are copied and stay until the next zero_grad.
void MegatronOptimizer::copy_gradients() {
  for (std::vector<Part>& group : groups_) {
    for (Part& part : group) {
      part.main->grad = tensor::to(part.gradient, DType::f32);
      if (part.gradient.dtype() != DType::f32) {
        runtime_.set_category(part.main->grad, Category::gradient);
      }
    }
  }
}

/// clip_grads.py, get_grad_norm_fp32 with the local norms of megatron/core/utils.py. A norm below
/// the limit scales nothing; above it, one copy of a gradient at a time is made.
void MegatronOptimizer::take_norm(std::size_t first, std::size_t end) {
  const Tensor overflow = runtime_.empty(Shape{1}, DType::i32);
  Tensor norm;
  {
    std::vector<Tensor> norms;
    for (std::size_t i = first; i < end; ++i) {
      for (const Part& part : groups_[i]) {
        if (!part.counted) continue;
        const Tensor flat = part_of(part.main->grad, part.main->grad.count());
        norms.push_back(tensor::norm(flat, 0, false));
      }
    }
    norm = runtime_.empty(Shape{1}, DType::f32);
    while (!norms.empty()) norms.pop_back();
  }
  const Tensor squared = tensor::pow_scalar(norm, 2);
}

void MegatronOptimizer::fused_adam(const std::vector<Part>& group) {
  for (const Part& part : group) {
    auto& [average, square] = states_[part.main.get()];
    if (average) continue;
    average = state_like(part.main);
    square = state_like(part.main);
  }
  std::vector<Tensor> list;
  for (const Part& part : group) list.push_back(part.main);
  foreach_ran("fused_adam", list, 4, 7);
}

void MegatronOptimizer::step() {
  const Scoped<tensor::Label> label(runtime_.label, {"optimizer", 0, false});
  const Scoped<bool> no_grad(runtime_.grad_enabled, false);
  copy_gradients();
  if (dtype_ == DType::f16) {  // the inverse of the scale is worked out in fp64
    Tensor wide = tensor::to(scale_, DType::f64);
    Tensor inverse = tensor::reciprocal(wide);
    wide.reset();
    const Tensor narrow = tensor::to(inverse, DType::f32);
    inverse.reset();
  }
  // Optimizers whose gradients lie on the same ranks take one norm of all (ChainedOptimizer,
  // grads_states_parallel_group_is_shared).
  if (sharded_ || groups_.size() == 2) {
    take_norm(0, groups_.size());
  } else {
    take_norm(0, 2);
    take_norm(2, groups_.size());
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (fused_) {
      fused_adam(groups_[i]);
      continue;
    }
    std::vector<Tensor> parameters;
    for (const Part& part : groups_[i]) parameters.push_back(part.main);
    if (!parameters.empty()) adam_[i]->step(parameters);
  }
  if (!is_half(dtype_)) return;
  for (const std::vector<Part>& group : groups_) {  // _copy_main_params_to_model_params
    for (const Part& part : group) {
      const std::int64_t bytes = element_size(DType::f32) + element_size(dtype_);
      runtime_.launched("copy", dtype_, static_cast<double>(part.main.count() * bytes));
    }
  }
}

}  // namespace shardfit::program
