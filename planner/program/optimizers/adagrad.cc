// torch/optim/adagrad.py, torch/optim/rmsprop.py

#include <map>

#include "program/optimizer.h"
#include "tensor/iterator.h"

namespace shardfit::program {
namespace {

using tensor::Tensor;

/// One running sum a parameter; a foreach step takes its square root, and Adagrad scales the
/// gradients.
class RootOptimizer : public Optimizer {
 public:
  RootOptimizer(Implementation implementation, bool adagrad)
      : implementation_(implementation), adagrad_(adagrad) {}

  void construct(const std::vector<Tensor>& parameters) override {
    if (!adagrad_) return;
    for (const Tensor& p : parameters) sums_[p.get()] = state_like(p);
  }

  void step(const std::vector<Tensor>& parameters) override {
    for (const Tensor& p : parameters) {
      if (p->grad && !sums_[p.get()]) sums_[p.get()] = state_like(p);
    }
    if (implementation_ == Implementation::fused) {
      for (const auto& group : dtype_groups(parameters)) foreach_ran("fused_adagrad", group, 3, 5);
      return;
    }
    if (implementation_ == Implementation::for_loop) return one_by_one(parameters);
    std::vector<Tensor> roots;
    std::vector<Tensor> numerators;
    for (const auto& group : dtype_groups(parameters)) {
      if (!adagrad_) foreach_ran("foreach_mul", group, 1, 2);
      foreach_ran("foreach_addcmul", group, 3, 3);
      roots = list_like(group, "foreach_sqrt");
      foreach_ran("foreach_add", group, 1, 2);
      if (adagrad_) numerators = list_like(group, "foreach_mul");
      foreach_ran("foreach_addcdiv", group, 3, 4);
    }
  }

 private:
  void one_by_one(const std::vector<Tensor>& parameters) {
    Tensor root;
    for (const Tensor& p : parameters) {
      if (!p->grad) continue;
      each_ran("adagrad", {p}, adagrad_ ? 3 : 4, adagrad_ ? 9 : 11);
      root = tensor::elementwise_output("sqrt", {p}, p.dtype());
    }
  }

  Implementation implementation_;
  bool adagrad_;
  std::map<const tensor::TensorBody*, Tensor> sums_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(Implementation implementation) {
  return std::make_unique<RootOptimizer>(implementation, true);
}
std::unique_ptr<Optimizer> make_rmsprop(Implementation implementation) {
  return std::make_unique<RootOptimizer>(implementation, false);
}

}  // namespace shardfit::program
