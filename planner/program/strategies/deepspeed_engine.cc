#include "program/strategies/deepspeed_engine.h"

#include <map>
#include <numeric>

namespace shardfit::program {

using tensor::Scoped;
using tensor::Tensor;

namespace {

/// DeepSpeed's FusedAdam: two states a tensor, the step counted on the host
/// (ops/adam/fused_adam.py).
class FusedAdam : public Optimizer {
 public:
  void step(const std::vector<Tensor>& parameters) override {
    for (const Tensor& p : parameters) {
      if (!p->grad) continue;
      auto& [average, square] = states_[p.get()];
      if (average) continue;
      average = state_like(p);
      square = state_like(p);
    }
  }

 private:
  std::map<const tensor::TensorBody*, std::pair<Tensor, Tensor>> states_;
};

bool is_adam(const std::string& name) { return name == "adam" || name == "adamw"; }

/// The class that engine.py picks (_configure_optimizer): BF16_Optimizer where a bf16 model
/// accumulates in fp32 without sharded gradients. In 0.18.4 the test for plain data parallelism
/// comes first there, and the class of stage 0 is taken.
bool takes_bf16_optimizer(const DeepSpeedJob& job, DType dtype) {
  return job.stage == 1 && dtype == DType::bf16 && job.fp32_accumulation && !job.release_0_18 &&
         !job.offload_optimizer;
}
bool takes_stage0(const DeepSpeedJob& job, DType dtype) {
  return job.stage == 0 ||
         (job.stage == 1 && dtype == DType::bf16 && job.fp32_accumulation && job.release_0_18);
}

}  // namespace

bool deepspeed_scales_loss(const DeepSpeedJob& job, DType dtype) {
  return !takes_stage0(job, dtype) && !takes_bf16_optimizer(job, dtype);
}

std::unique_ptr<Strategy> make_deepspeed(const DeepSpeedParts& parts) {
  if (takes_stage0(parts.job, parts.dtype)) return make_deepspeed_stage0(parts);
  if (takes_bf16_optimizer(parts.job, parts.dtype)) return make_deepspeed_bf16(parts);
  if (parts.job.stage == 3) return make_deepspeed_stage3(parts);
  return make_deepspeed_stage12(parts);
}

DeepSpeedEngine::DeepSpeedEngine(const DeepSpeedParts& parts)
    : job_(parts.job),
      machine_(parts.machine),
      root_(parts.root),
      runtime_(parts.machine.runtime),
      accumulation_(parts.accumulation),
      dtype_(parts.dtype),
      fused_(is_adam(parts.optimizer) && parts.implementation == Implementation::fused &&
             !parts.job.offload_optimizer) {
  if (job_.offload_optimizer) {
    optimizer_ = make_optimizer("none", parts.implementation);  // states are on the host
  } else if (fused_) {
    optimizer_ = std::make_unique<FusedAdam>();
  } else {
    optimizer_ = make_optimizer(parts.optimizer, parts.implementation);
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(job_.ranks));
  std::iota(all.begin(), all.end(), 0);
  runtime_.group(all);
  runtime_.program.rank = static_cast<std::int32_t>(job_.rank);
}

std::vector<Tensor> DeepSpeedEngine::trainable_of(const model::Module& root) const {
  std::vector<Tensor> trainable;
  for (const model::Parameter& p : machine_.parameters(root)) {
    if (p.tensor->leaf_requires_grad) trainable.push_back(p.tensor);
  }
  return trainable;
}

bool DeepSpeedEngine::step() {
  if (!boundary()) return true;
  update();
  engine_norm_ = global_norm_;
  return true;
}

void DeepSpeedEngine::divide_gradients(const model::Value& outputs) {
  if (outputs.kind == model::ValueKind::tensor && outputs.tensor->grad_fn) {
    outputs.tensor->grad_fn->divided_output = static_cast<std::int32_t>(outputs.tensor->output);
  }
  if (outputs.kind != model::ValueKind::list) return;
  for (const model::Value& item : *outputs.list) divide_gradients(item);
}

Tensor DeepSpeedEngine::make(std::int64_t count, DType dtype, Category category, const char* kind) {
  const Scoped<const char*> label(runtime_.label.kind, kind);
  Tensor t = runtime_.empty(Shape{count}, dtype);
  runtime_.set_category(t, category);
  return t;
}

Tensor DeepSpeedEngine::flatten(const std::vector<Tensor>& pieces, const char* kind) {
  if (pieces.size() == 1) {
    const Tensor& only = pieces.front();
    return runtime_.alias_of(only, Shape{only.count()}, Shape{1});
  }
  std::vector<std::int64_t> counts;
  for (const Tensor& piece : pieces) counts.push_back(piece.count());
  return flatten(counts, pieces.front().dtype(), kind);
}

Tensor DeepSpeedEngine::flatten(const std::vector<std::int64_t>& counts, DType dtype,
                                const char* kind) {
  if (counts.size() < 2) return {};
  return make(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), dtype,
              Category::communication, kind);
}

void DeepSpeedEngine::exchange(CollectiveKind kind, DType dtype, std::int64_t count) {
  if (job_.ranks < 2) return;
  Collective collective;
  collective.kind = kind;
  collective.dtype = dtype;
  collective.bytes = count * element_size(dtype);
  runtime_.exchange(collective, runtime_.current_stream);
}

void DeepSpeedEngine::check_extremes(const Tensor& held, std::int64_t count) {
  const Tensor piece = runtime_.alias_of(held, Shape{count}, Shape{1});
  const std::int64_t bytes = tensor::reduce_scratch(piece, 1, piece.dtype()).first;
  if (bytes == 0) return;
  for (int k = 0; k < 2; ++k) runtime_.scratch(is_half(piece.dtype()) ? bytes / 2 : bytes);
}

void DeepSpeedEngine::check_elements(std::int64_t count) {
  const auto temporary = [&](DType dtype, const char* kind) {
    return make(count, dtype, Category::temporary, kind);
  };
  const Tensor wide = temporary(DType::f32, "to");
  const Tensor not_a_number = temporary(DType::boolean, "isnan");
  Tensor magnitude = temporary(DType::f32, "abs");
  const Tensor infinite = temporary(DType::boolean, "isinf");
  magnitude.reset();
  const Tensor either = temporary(DType::boolean, "logical_or");
  const Tensor numbers = temporary(DType::f32, "to");
}

Tensor DeepSpeedEngine::norm_of(std::int64_t count) {
  const Tensor wide = make(count, DType::f64, Category::temporary, "gradient_norm");
  return tensor::norm(wide, 0, false);
}

Tensor DeepSpeedEngine::total_norm(std::vector<Tensor> norms) {
  Tensor total;
  {
    Tensor stacked = runtime_.empty(Shape{static_cast<std::int64_t>(norms.size())}, DType::f64);
    const Tensor powers = tensor::pow_scalar(stacked, 2.0);
    stacked.reset();
    total = tensor::to(tensor::sum_all(powers), DType::f32);
  }
  exchange(CollectiveKind::all_reduce, DType::f32, 1);
  Tensor norm = tensor::pow_scalar(total, 0.5);
  total.reset();
  mask_invalid();
  return norm;
}

Tensor DeepSpeedEngine::total_of(const std::vector<Tensor>& norms) {
  Tensor stacked = runtime_.empty(Shape{static_cast<std::int64_t>(norms.size())}, DType::f32);
  const Tensor powers = tensor::pow_scalar(stacked, 2.0);
  stacked.reset();
  const Tensor sum = tensor::sum_all(powers);
  return tensor::pow_scalar(sum, 0.5);
}

void DeepSpeedEngine::mask_invalid() {
  Tensor magnitude = scalar(DType::f32);
  const Tensor infinite = scalar(DType::boolean);
  magnitude.reset();
  const Tensor not_a_number = scalar(DType::boolean);
  const Tensor either = scalar(DType::boolean);
  const Tensor replacement = scalar(DType::f32);
}

Tensor DeepSpeedEngine::combined_norm() {
  const Tensor stacked = runtime_.empty(Shape{1}, DType::f32);
  const Tensor combined = scalar(DType::f32);
  return scalar(DType::f32);
}

void DeepSpeedEngine::clip_factor(const Tensor& norm) {
  if (!job_.clip || !norm) return;
  Tensor clip = tensor::div_scalar(norm);
  clip = tensor::add_scalar(clip);
  clip = tensor::div_scalar(clip);
  clip = tensor::add_scalar(clip);  // clamp
  const Tensor combined = tensor::mul_scalar(clip);
  const Tensor inverse = tensor::reciprocal(combined);
  const Tensor factor = tensor::mul_scalar(inverse);
}

}  // namespace shardfit::program
