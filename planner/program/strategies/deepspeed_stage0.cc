// Stage 0: every rank holds everything; gradients are all-reduced after the backward pass
// (deepspeed/runtime/engine.py, buffered_allreduce_fallback). Models in 16 bit get fp32 masters in
// one flat tensor (fp16/fused_optimizer.py) or, where the optimizer is not DeepSpeed's fused Adam,
// one by one (fp16/unfused_optimizer.py).

#include "program/strategies/deepspeed_engine.h"

namespace shardfit::program {
namespace {

using model::Module;
using tensor::Scoped;
using tensor::Tensor;
using tensor::TensorBody;

/// engine.py, MEMORY_OPT_ALLREDUCE_SIZE: elements of a bucket.
constexpr std::int64_t allreduce_size = 500000000;

class Stage0 : public DeepSpeedEngine {
 public:
  using DeepSpeedEngine::DeepSpeedEngine;

  void wrap(const Module& root) override {
    const std::vector<Tensor> trainable = trainable_of(root);
    const Scoped<tensor::Label> label(runtime_.label, {"initialize", 0, false});
    parameters_ = trainable;
    if (trainable.empty()) return;
    dtype_ = trainable.front().dtype();
    if (fused_) dummy_overflow_ = scalar(DType::i32);
    if (dtype_ == DType::f32) {
      optimizer_->construct(parameters_);
    } else if (fused_) {
      make_flat();
    } else {
      make_masters();
    }
  }

  void after_gradient(TensorBody&) override {}

  void backward_returned() override {
    if (!boundary()) return;
    const Scoped<tensor::Label> label(runtime_.label, {"reduce_gradients", 0, true});
    std::vector<std::int64_t> counts;
    std::int64_t count = 0;
    const auto reduce = [&] {
      const Tensor flat = flatten(counts, dtype_, "flattened_bucket");
      exchange(CollectiveKind::all_reduce, dtype_, count);
      counts.clear();
      count = 0;
    };
    for (const Tensor& p : parameters_) {
      counts.push_back(p.count());
      count += p.count();
      if (count > allreduce_size) reduce();
    }
    if (!counts.empty()) reduce();
  }

 private:
  void make_flat() {
    std::int64_t count = 0;
    std::vector<Tensor> copies;
    for (const Tensor& p : parameters_) {
      copies.push_back(make(p.count(), dtype_, Category::temporary, "clone"));
      count += p.count();
    }
    flat_ = make(count, dtype_, Category::parameter, "flat_parameters");
    while (!copies.empty()) copies.pop_back();
    for (const Tensor& p : parameters_) runtime_.rebase(p, flat_);
    {
      const Tensor clone = make(count, dtype_, Category::temporary, "clone");
      masters_ = {make(count, DType::f32, Category::optimizer_state, "master_parameters")};
    }
    first_step({make(count, DType::f32, Category::gradient, "zeros")});
  }

  void make_masters() {
    for (const Tensor& p : parameters_) {
      const Tensor clone = like(p, dtype_, Category::temporary, "clone");
      masters_.push_back(like(p, DType::f32, Category::optimizer_state, "master_parameters"));
    }
    std::vector<Tensor> zeros, wide;
    for (const Tensor& p : parameters_) {
      zeros.push_back(like(p, dtype_, Category::gradient, "zeros"));
    }
    for (const Tensor& p : parameters_) {
      wide.push_back(like(p, DType::f32, Category::gradient, "zeros"));
    }
    first_step(std::move(wide));
  }

  /// States are made by a step with gradients of zeros.
  void first_step(std::vector<Tensor> zeros) {
    optimizer_->construct(masters_);
    for (std::size_t i = 0; i < masters_.size(); ++i) masters_[i]->grad = std::move(zeros[i]);
    optimizer_->step(masters_);
    for (const Tensor& master : masters_) master->grad.reset();
  }

  Tensor like(const Tensor& p, DType dtype, Category category, const char* kind) {
    const Scoped<const char*> label(runtime_.label.kind, kind);
    Tensor t = runtime_.empty(p.shape(), dtype);
    runtime_.set_category(t, category);
    return t;
  }

  void update() override {
    if (dtype_ == DType::f32) return update_plainly();
    if (fused_) return update_flat();
    norms_one_by_one();
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      masters_[i]->grad = like(parameters_[i], DType::f32, Category::gradient, "master_gradient");
    }
    optimizer_->step(masters_);
    for (const Tensor& master : masters_) master->grad.reset();
    drop_gradients();
  }

  void update_flat() {
    std::vector<Tensor> wide;
    std::int64_t count = 0;
    for (const Tensor& p : parameters_) {
      wide.push_back(make(p.count(), DType::f32, Category::temporary, "master_gradient"));
      count += p.count();
    }
    masters_.front()->grad = make(count, DType::f32, Category::gradient, "flattened_gradients");
    while (!wide.empty()) wide.pop_back();
    drop_gradients();
    const Tensor norm = tensor::norm(masters_.front()->grad, 0, false);
    optimizer_->step(masters_);
    masters_.front()->grad.reset();
  }

  /// get_weight_norm: each gradient in fp32.
  void norms_one_by_one() {
    for (const Tensor& p : parameters_) {
      const Tensor wide = make(p.count(), DType::f32, Category::temporary, "gradient_norm");
      const Tensor norm = tensor::norm(wide, 0, false);
    }
  }

  void update_plainly() {
    {
      std::vector<Tensor> norms;
      for (const Tensor& p : parameters_) {
        if (!p->grad || !job_.clip) continue;
        const Tensor flat = runtime_.alias_of(p->grad, Shape{p.count()}, Shape{1});
        norms.push_back(tensor::norm(flat, 0, false));
      }
      if (!norms.empty()) const Tensor total = total_of(norms);
    }
    optimizer_->step(parameters_);
    drop_gradients();
  }

  void drop_gradients() {
    for (const Tensor& p : parameters_) p->grad.reset();
  }

  std::vector<Tensor> parameters_, masters_;
  Tensor flat_;
};

/// bf16 with gradients accumulated in fp32: the whole model's gradients in one fp32 tensor, not
/// sharded; master and states are (runtime/bf16_optimizer.py, BF16_Optimizer).
class Bf16 : public DeepSpeedEngine {
 public:
  using DeepSpeedEngine::DeepSpeedEngine;

  void wrap(const Module& root) override {
    const std::vector<Tensor> trainable = trainable_of(root);
    const Scoped<tensor::Label> label(runtime_.label, {"initialize", 0, false});
    parameters_ = trainable;
    if (trainable.empty()) return;
    if (fused_) dummy_overflow_ = scalar(DType::i32);
    std::int64_t total = 0;
    for (const Tensor& p : parameters_) total += p.count();
    const std::int64_t alignment = 2 * ranks();
    count_ = (total + alignment - 1) / alignment * alignment;
    partition_ = count_ / ranks();
    {
      Tensor padding;
      if (count_ > total) padding = make(count_ - total, dtype_, Category::temporary, "padding");
      flat_ = make(count_, dtype_, Category::parameter, "flat_parameters");
    }
    for (const Tensor& p : parameters_) runtime_.rebase(p, flat_);
    {
      const Tensor clone = make(partition_, dtype_, Category::temporary, "clone");
      master_ = make(partition_, DType::f32, Category::optimizer_state, "master_parameters");
    }
    gradients_ = make(count_, DType::f32, Category::gradient, "flat_gradients");
    optimizer_->construct({master_});
  }

  void after_gradient(TensorBody&) override {}

  /// backward_epilogue: gradients are added to the fp32 ones, each through a copy; they themselves
  /// stay until the step's end.
  void backward_returned() override {
    const Scoped<tensor::Label> label(runtime_.label, {"reduce_gradients", 0, true});
    for (const Tensor& p : parameters_) {
      if (!p->grad) continue;
      const Tensor wide = make(p.count(), DType::f32, Category::temporary, "to");
      if (runtime_.watched()) runtime_.ran("accumulate_grad", {wide, p->grad}, {wide});
    }
    if (!boundary()) return;
    // The exchange is in the model's dtype (allreduce_bucket).
    const Tensor narrow = make(count_, dtype_, Category::communication, "to");
    exchange(CollectiveKind::all_reduce, dtype_, count_);
  }

 private:
  void update() override {
    global_norm_ = gradient_norm();
    master_->grad = runtime_.alias_of(gradients_, Shape{partition_}, Shape{1});
    optimizer_->step({master_});
    master_->grad.reset();
    exchange(CollectiveKind::all_gather, dtype_, count_);
    for (const Tensor& p : parameters_) p->grad.reset();
  }

  /// get_global_norm_of_tensors: a number a parameter, stacked.
  Tensor gradient_norm() {
    std::vector<Tensor> norms;
    for (const Tensor& p : parameters_) {
      const Tensor piece = runtime_.alias_of(gradients_, Shape{p.count()}, Shape{1});
      norms.push_back(tensor::norm(piece, 0, false));
    }
    Tensor total = total_of(norms);
    mask_invalid();
    return total;
  }

  std::vector<Tensor> parameters_;
  Tensor flat_, master_, gradients_;
  std::int64_t count_ = 0, partition_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_deepspeed_stage0(const DeepSpeedParts& parts) {
  return std::make_unique<Stage0>(parts);
}
std::unique_ptr<Strategy> make_deepspeed_bf16(const DeepSpeedParts& parts) {
  return std::make_unique<Bf16>(parts);
}

}  // namespace shardfit::program
