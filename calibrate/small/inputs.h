#pragma once
// What the parts of a small operator share.

#include <cmath>
#include <type_traits>

#include "calibrate/small/shape.h"

namespace shardfit::calibrate {

/// `A` is what is computed in: float, double or a 64-bit integer. `In` gives number (input, index).
template <class A, class In>
class SmallInputs {
 public:
  SHARDFIT_BOTH SmallInputs(const SmallShape& s, const In& in)
      : s_(s), in_(in), n_(s.columns), back_(s.backward) {}

 protected:
  using F = std::conditional_t<std::is_floating_point_v<A>, A, float>;
  static constexpr bool whole = !std::is_floating_point_v<A>;

  SHARDFIT_BOTH A in(int input, std::int64_t row, std::int64_t j) const {
    return in_(input, row * input_a_row(s_, input) + j);
  }
  SHARDFIT_BOTH A a(std::int64_t row, std::int64_t j) const { return in(0, row, j); }
  SHARDFIT_BOTH A b(std::int64_t row, std::int64_t j) const { return in(1, row, j); }
  SHARDFIT_BOTH A d(std::int64_t row, std::int64_t j) const { return in(3, row, j); }

  template <class Term>
  SHARDFIT_BOTH F total(Term term) const {
    F sum = 0;
    for (std::int64_t i = 0; i < n_; ++i) sum += term(i);
    return sum;
  }
  SHARDFIT_BOTH F f(std::int64_t row, std::int64_t i) const { return static_cast<F>(a(row, i)); }
  SHARDFIT_BOTH F df(std::int64_t row, std::int64_t i) const { return static_cast<F>(d(row, i)); }

  SHARDFIT_BOTH static F sigmoid(F x) { return 1 / (1 + std::exp(-x)); }

  const SmallShape& s_;
  const In& in_;
  std::int64_t n_;
  bool back_;
};

}  // namespace shardfit::calibrate
