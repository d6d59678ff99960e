#pragma once
// What the stages of DeepSpeed's engine share.

#include <vector>

#include "model/machine.h"
#include "program/deepspeed.h"
#include "tensor/ops.h"

namespace shardfit::program {

class DeepSpeedEngine : public Strategy {
 public:
  explicit DeepSpeedEngine(const DeepSpeedParts& parts);

  void before_forward(bool) override { ++passes_; }
  void left_out(std::int64_t passes) override { passes_ += passes; }
  /// Hooks on the outputs divide their gradients by the micro-batches of a step where the program
  /// calls loss.backward() itself; in 0.18 always (engine.py, _backward_prologue_per_tensor).
  void after_forward(bool, model::Value& result) override {
    if (job_.torch_style_backward || job_.release_0_18) divide_gradients(result);
  }
  bool step() override;

 protected:
  using Tensor = tensor::Tensor;
  using Shape = tensor::Shape;

  static void divide_gradients(const model::Value& outputs);
  /// The optimizer's update; runs under the label of the optimizer.
  virtual void update() = 0;

  /// The trainable parameters in the model's order.
  std::vector<Tensor> trainable_of(const model::Module& root) const;
  /// The pass that is running, or has run last, ends a step.
  bool boundary() const { return passes_ % accumulation_ == 0; }
  std::int64_t ranks() const { return job_.ranks; }

  Tensor make(std::int64_t count, DType dtype, Category category, const char* kind);
  Tensor scalar(DType dtype) { return runtime_.empty({}, dtype); }
  /// torch._utils._flatten_dense_tensors: one tensor is a view of itself, several are copied
  /// (torch/csrc/utils/tensor_flatten.h, flatten_dense_tensors).
  Tensor flatten(const std::vector<Tensor>& pieces, const char* kind);
  /// The same of pieces whose sizes are known.
  Tensor flatten(const std::vector<std::int64_t>& counts, DType dtype, const char* kind);

  /// A collective over all ranks, queued behind the current stream's work. With the default
  /// async_op = False it runs on the current stream itself (torch/csrc/distributed/c10d/
  /// ProcessGroupNCCL.cpp), so nothing waits.
  void exchange(CollectiveKind kind, DType dtype, std::int64_t count);

  /// has_inf_or_nan: the largest and the smallest element, whose scratch is of the piece's dtype.
  void check_extremes(const Tensor& held, std::int64_t count);
  /// 0.18 looks at every element, of fp16 gradients only: copies in fp32 and masks.
  void check_elements(std::int64_t count);

  /// ||piece|| in fp64 (get_grad_norm_direct): a copy of eight bytes an element.
  Tensor norm_of(std::int64_t count);
  /// From the norms of the pieces to the number that is compared with the limit.
  Tensor total_norm(std::vector<Tensor> norms);
  /// The same of fp32 numbers, where the norm is taken of whole gradients.
  Tensor total_of(const std::vector<Tensor>& norms);
  /// mask_nan_or_inf_with_val_inplace: its numbers.
  void mask_invalid();
  /// combine_grad_norm_groups of one group: its norm stacked, the norm of that, and the choice.
  Tensor combined_norm();
  /// unscale_and_clip_grads: the factor that the gradients are multiplied by.
  void clip_factor(const Tensor& norm);

  const DeepSpeedJob job_;
  model::Machine& machine_;
  const model::Module& root_;
  tensor::Runtime& runtime_;
  std::int64_t accumulation_;
  DType dtype_;
  bool fused_;  // DeepSpeed's FusedAdam
  std::unique_ptr<Optimizer> optimizer_;
  Tensor dummy_overflow_;  // FusedAdam's, one number
  Tensor global_norm_;     // kept for get_global_grad_norm,
  Tensor engine_norm_;     // by the optimizer and, once its step is done, by the engine
  std::int64_t passes_ = 0;
};

std::unique_ptr<Strategy> make_deepspeed_stage0(const DeepSpeedParts& parts);
std::unique_ptr<Strategy> make_deepspeed_bf16(const DeepSpeedParts& parts);
std::unique_ptr<Strategy> make_deepspeed_stage12(const DeepSpeedParts& parts);
std::unique_ptr<Strategy> make_deepspeed_stage3(const DeepSpeedParts& parts);

}  // namespace shardfit::program
