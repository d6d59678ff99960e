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
    if (implementation_ == Implementation::for_loop) {
      Names names;
      for (const Tensor& p : parameters) {
        if (p->grad) update({p}, names);
      }
      return;
    }
    Names names;
    for (const auto& group : dtype_groups(parameters)) {
      std::vector<Tensor> matrices, vectors;
      for (const Tensor& p : group) (p.rank() > 1 ? matrices : vectors).push_back(p);
      const bool matrix_first = group.front().rank() > 1;
      for (const auto& list : matrix_first ? std::vector{matrices, vectors}
                                           : std::vector{vectors, matrices}) {
        if (!list.empty()) update(list, names);
      }
    }
  }

 private:
  struct State {
    Tensor row, column, variance;
  };
  /// Names of the step that keep their lists until they are bound again.
  struct Names {
    std::vector<Tensor> estimates;
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
  static void norm(const Tensor& t) {
    tensor::sum_dims(t, (1U << t.rank()) - 1, false);
  }

  void update(const std::vector<Tensor>& list, Names& names) {
    for (const Tensor& p : list) norm(p);
    std::vector<Tensor> estimates;
    if (list.front().rank() > 1) {
      for (const int dim : {-1, -2}) {
        std::vector<Tensor> means;
        for (const Tensor& p : list) {
          const int i = dim + p.rank();
          means.push_back(tensor::sum_dims(p->grad, 1U << i, true));
        }
      }
      for (const Tensor& p : list) {
        const State& s = states_[p.get()];
        estimates.push_back(tensor::matmul(s.row, s.column));
      }
      std::vector<Tensor> means;
      for (const Tensor& p : list) means.push_back(tensor::mean(states_[p.get()].row, -2, true));
    } else {
      const std::vector<Tensor> squared = list_like(list, "foreach_mul");
      estimates = list_like(list, "clone");
    }
    names.estimates = std::move(estimates);
    for (const Tensor& t : names.estimates) norm(t);
  }

  Implementation implementation_;
  std::map<const tensor::TensorBody*, State> states_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(Implementation implementation) {
  return std::make_unique<Adafactor>(implementation);
}

}  // namespace shardfit::program
