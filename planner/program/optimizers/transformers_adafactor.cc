// transformers' own Adafactor, as its Trainer makes it: no momentum, no relative steps
// (transformers src/transformers/optimization.py, Adafactor; trainer_optimizer.py).

#include <map>

#include "program/optimizer.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using tensor::Tensor;

class TransformersAdafactor : public Optimizer {
 public:
  void step(const std::vector<Tensor>& parameters) override {
    if (parameters.empty()) return;
    const tensor::Scoped<bool> no_grad(parameters.front().runtime().grad_enabled, false);
    Names names;
    for (const Tensor& p : parameters) {
      if (p->grad) one(p, names);
    }
  }

 private:
  struct State {
    Tensor row, column, variance;
    Tensor rms;  // of the parameter: a number on the device, made anew in each step
  };
  /// Names of the step that keep their tensors until they are bound again.
  struct Names {
    Tensor gradient, data, update;
  };

  static Tensor made(const char* kind, const Tensor& like) {
    return tensor::elementwise_output(kind, {like}, DType::f32);
  }

  /// 16-bit tensors are worked on in a copy.
  static Tensor in_fp32(const Tensor& t) { return is_half(t.dtype()) ? made("to", t) : t; }

  /// _rms: the norm, then its quotient.
  static Tensor rms(const Tensor& t) {
    const Tensor norm = tensor::sum_dims(t, (1U << t.rank()) - 1, false);
    return made("div", norm);
  }

  void make_state(const Tensor& p, const Tensor& gradient) {
    State& s = states_[p.get()];
    if (s.row || s.variance) return;
    if (p.rank() < 2) {
      s.variance = state_like(gradient);
      return;
    }
    tensor::Shape row = p.shape(), column = p.shape();
    row.rank = column.rank = p.rank() - 1;
    column[column.rank - 1] = p.shape()[p.rank() - 1];
    s.row = state_of(p.runtime(), row, DType::f32);
    s.column = state_of(p.runtime(), column, DType::f32);
  }

  /// _approx_sq_grad: the product of both factors' roots.
  static Tensor approximation(const State& s, const Tensor& gradient) {
    Tensor row_factor;
    {
      const Tensor mean = tensor::mean(s.row, -1, true);
      row_factor = made("div", s.row);
    }
    const Tensor column_factor = made("rsqrt", s.column);
    return made("mul", gradient);
  }

  void one(const Tensor& p, Names& names) {
    names.gradient = in_fp32(p->grad);
    make_state(p, names.gradient);
    State& s = states_[p.get()];
    names.data = in_fp32(p);
    const Tensor of_parameter = rms(names.data);
    p.runtime().set_category(of_parameter, Category::optimizer_state);
    s.rms = of_parameter;
    {
      const Tensor squared = made("pow", names.gradient);
      names.update = made("add", squared);
    }
    if (p.rank() > 1) {
      { const Tensor mean = tensor::mean(names.update, -1, false); }
      { const Tensor mean = tensor::mean(names.update, -2, false); }
      names.update = approximation(s, names.gradient);
    } else {
      names.update = made("rsqrt", s.variance);
    }
    {
      Tensor clipped = rms(names.update);
      clipped = made("div", clipped);
    }
    const Tensor negated = made("neg", names.update);
    // factors' averages, products with gradient and rate, the update, the copy back
    each_ran("adafactor", {p}, 9, 18);
  }

  std::map<const tensor::TensorBody*, State> states_;
};

}  // namespace

std::unique_ptr<Optimizer> make_transformers_adafactor(Implementation) {
  return std::make_unique<TransformersAdafactor>();
}

}  // namespace shardfit::program
