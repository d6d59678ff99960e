// torch/optim/_adafactor.py

#include <map>

#include "program/optimizer.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using tensor::Shape;
using tensor::Tensor;

Shape with_one(const Tensor& t, int dim) {
  Shape shape = t.shape();
  shape[dim] = 1;
  return shape;
}

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(Implementation implementation) : implementation_(implementation) {}

  void step(const std::vector<Tensor>& parameters) override {
    for (const Tensor& p : parameters) {
      if (p->grad) make_state(p);
    }
    Names names;
    if (implementation_ == Implementation::for_loop) {
      for (const Tensor& p : parameters) {
        if (p->grad) one(p, names);
      }
      return;
    }
    for (const auto& group : dtype_groups(parameters)) {
      std::vector<Tensor> matrices, vectors;
      for (const Tensor& p : group) (p.rank() > 1 ? matrices : vectors).push_back(p);
      const bool matrices_first = group.front().rank() > 1;
      if (!matrices_first && !vectors.empty()) all(vectors, names);
      if (!matrices.empty()) all(matrices, names);
      if (matrices_first && !vectors.empty()) all(vectors, names);
    }
  }

 private:
  struct State {
    Tensor row, column, variance;
  };
  /// Names of the step that keep their tensors until they are bound again.
  struct Names {
    Tensor row_mean, column_mean, squared, estimate, update;
    std::vector<Tensor> updates;
  };

  void make_state(const Tensor& p) {
    State& s = states_[p.get()];
    if (s.row || s.variance) return;
    tensor::Runtime& runtime = p.runtime();
    if (p.rank() > 1) {
      s.row = state_of(runtime, with_one(p, -1), p->grad.dtype());
      s.column = state_of(runtime, with_one(p, -2), p->grad.dtype());
    } else {
      s.variance = state_like(p->grad);
    }
  }

  /// The norm of a parameter is read on the host: one number, and a split sum's buffers.
  static void norm(const Tensor& t) { tensor::sum_dims(t, (1U << t.rank()) - 1, false); }

  /// _single_tensor_adafactor
  void one(const Tensor& p, Names& names) {
    norm(p);
    const State& s = states_[p.get()];
    if (p.rank() > 1) {
      names.row_mean = tensor::norm(p->grad, -1, true);
      names.column_mean = tensor::norm(p->grad, -2, true);
      names.estimate = tensor::matmul(s.row, s.column);
      tensor::mean(s.row, -2, true);
    } else {
      names.squared = tensor::elementwise_output("mul", {p->grad}, p->grad.dtype());
      names.estimate = tensor::elementwise_output("clone", {s.variance}, s.variance.dtype());
    }
    names.update = names.estimate;
    // lerps of the factors, the division, clamp, root, product with the gradient, the update
    each_ran("adafactor", {p}, 8, 16);
    norm(names.update);
  }

  /// _multi_tensor_adafactor: one list at a time; the last estimates live until the next are used.
  void all(const std::vector<Tensor>& list, Names& names) {
    for (const Tensor& p : list) norm(p);
    std::vector<Tensor> estimates;
    if (list.front().rank() > 1) {
      for (const int dim : {-1, -2}) {
        std::vector<Tensor> means;
        for (const Tensor& p : list) means.push_back(tensor::norm(p->grad, dim, true));
      }
      for (const Tensor& p : list) {
        const State& s = states_[p.get()];
        estimates.push_back(tensor::matmul(s.row, s.column));
      }
      std::vector<Tensor> means;
      for (const Tensor& p : list) means.push_back(tensor::mean(states_[p.get()].row, -2, true));
    } else {
      { const std::vector<Tensor> squared = list_like(list, "foreach_mul"); }
      estimates = list_like(list, "clone");
    }
    names.updates = std::move(estimates);
    // lerps of the factors, divisions, clamp, root, product with the gradients, the update
    foreach_ran("foreach_adafactor", list, 2, 16);
    for (const Tensor& t : names.updates) norm(t);
  }

  Implementation implementation_;
  std::map<const tensor::TensorBody*, State> states_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(Implementation implementation) {
  return std::make_unique<Adafactor>(implementation);
}

}  // namespace shardfit::program
