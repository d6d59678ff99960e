// torch/optim/sgd.py

#include <map>

#include "program/optimizer.h"

namespace shardfit::program {
namespace {

using tensor::Tensor;

class Sgd : public Optimizer {
 public:
  explicit Sgd(bool momentum) : momentum_(momentum) {}

  /// The momentum buffer is a copy of the first gradient; every other operation is in place.
  void step(const std::vector<Tensor>& parameters) override {
    if (!momentum_) return;
    for (const Tensor& p : parameters) {
      if (!p->grad) continue;
      Tensor& buffer = buffers_[p.get()];
      if (!buffer) buffer = state_like(p->grad);
    }
  }

 private:
  bool momentum_;
  std::map<const tensor::TensorBody*, Tensor> buffers_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(Implementation) { return std::make_unique<Sgd>(false); }
std::unique_ptr<Optimizer> make_sgd_momentum(Implementation) {
  return std::make_unique<Sgd>(true);
}

}  // namespace shardfit::program
