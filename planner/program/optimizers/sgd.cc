// torch/optim/sgd.py

#include <map>

#include "program/optimizer.h"

namespace shardfit::program {
namespace {

using tensor::Tensor;

class Sgd : public Optimizer {
 public:
  Sgd(Implementation implementation, bool momentum)
      : implementation_(implementation), momentum_(momentum) {}

  /// The momentum buffer is a copy of the first gradient; every other operation is in place.
  void step(const std::vector<Tensor>& parameters) override {
    for (const auto& group : dtype_groups(parameters)) report(group);
    if (!momentum_) return;
    for (const Tensor& p : parameters) {
      if (!p->grad) continue;
      Tensor& buffer = buffers_[p.get()];
      if (!buffer) buffer = state_like(p->grad);
    }
  }

 private:
  /// buffer.mul_(momentum).add_(gradient); parameter.add_(buffer or gradient).
  void report(const std::vector<Tensor>& group) const {
    if (implementation_ == Implementation::fused) {
      return foreach_ran("fused_sgd", group, momentum_ ? 3 : 2, momentum_ ? 5 : 3);
    }
    if (implementation_ == Implementation::for_loop) {
      return each_ran("sgd", group, momentum_ ? 3 : 1, momentum_ ? 8 : 3);
    }
    if (momentum_) {
      foreach_ran("foreach_mul", group, 1, 2);
      foreach_ran("foreach_add", group, 2, 3);
    }
    foreach_ran("foreach_add", group, 2, 3);
  }

  Implementation implementation_;
  bool momentum_;
  std::map<const tensor::TensorBody*, Tensor> buffers_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(Implementation implementation) {
  return std::make_unique<Sgd>(implementation, false);
}
std::unique_ptr<Optimizer> make_sgd_momentum(Implementation implementation) {
  return std::make_unique<Sgd>(implementation, true);
}

}  // namespace shardfit::program
