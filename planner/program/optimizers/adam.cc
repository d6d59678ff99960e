// torch/optim/adam.py

#include <map>

#include "program/optimizer.h"
#include "tensor/iterator.h"

namespace shardfit::program {
namespace {

using tensor::Tensor;

class Adam : public Optimizer {
 public:
  Adam(Implementation implementation, bool amsgrad)
      : implementation_(implementation), amsgrad_(amsgrad) {}

  void step(const std::vector<Tensor>& parameters) override {
    make_states(parameters);
    const double states = amsgrad_ ? 3 : 2;
    if (implementation_ == Implementation::fused) {
      // Parameter, gradient and states are read, all but the gradient written (FusedAdamKernel.cu).
      for (const auto& group : dtype_groups(parameters)) {
        foreach_ran("fused_adamw", group, amsgrad_ ? 5 : 4, 3 + 2 * states);
      }
      return;
    }
    if (implementation_ == Implementation::for_loop) return one_by_one(parameters);
    // The square roots of a group stay alive until the next group's are made.
    std::vector<Tensor> roots;
    for (const auto& group : dtype_groups(parameters)) {
      // _multi_tensor_adam: decay, lerp, mul, addcmul (and a maximum); behind the root a division,
      // eps, and the update.
      foreach_ran("foreach_mul", group, 1, 2);
      foreach_ran("foreach_lerp", group, 2, 3);
      foreach_ran("foreach_mul", group, 1, 2);
      foreach_ran("foreach_addcmul", group, 3, 3);
      if (amsgrad_) foreach_ran("foreach_maximum", group, 2, 3);
      roots = list_like(group, "foreach_sqrt");
      foreach_ran("foreach_div", group, 1, 2);
      foreach_ran("foreach_add", group, 1, 2);
      foreach_ran("foreach_addcdiv", group, 3, 4);
    }
    // The name is dropped last element first.
    while (!roots.empty()) roots.pop_back();
  }

 private:
  struct State {
    Tensor step, exp_avg, exp_avg_sq, max_exp_avg_sq;
  };

  void make_states(const std::vector<Tensor>& parameters) {
    for (const Tensor& p : parameters) {
      if (!p->grad) continue;
      State& state = states_[p.get()];
      if (state.exp_avg) continue;
      // Only the fused kernel keeps its step counter on the device.
      if (implementation_ == Implementation::fused) {
        state.step = state_of(p.runtime(), {}, DType::f32);
      }
      state.exp_avg = state_like(p);
      state.exp_avg_sq = state_like(p);
      if (amsgrad_) state.max_exp_avg_sq = state_like(p);
    }
  }

  /// denom = (sqrt / correction).add_(eps): two tensors of the parameter's size at once, and the
  /// name keeps the last one until the next is bound.
  void one_by_one(const std::vector<Tensor>& parameters) {
    Tensor denominator;
    for (const Tensor& p : parameters) {
      if (!p->grad) continue;
      each_ran("adamw", {p}, amsgrad_ ? 7 : 6, amsgrad_ ? 19 : 16);  // what allocates nothing
      const Tensor root = tensor::elementwise_output("sqrt", {p}, p.dtype());
      denominator = tensor::elementwise_output("div", {p}, p.dtype());
    }
  }

  Implementation implementation_;
  bool amsgrad_;
  std::map<const tensor::TensorBody*, State> states_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(Implementation implementation) {
  return std::make_unique<Adam>(implementation, false);
}
std::unique_ptr<Optimizer> make_adamw_amsgrad(Implementation implementation) {
  return std::make_unique<Adam>(implementation, true);
}

}  // namespace shardfit::program
