#pragma once
#include "calibrate/small/inputs.h"

namespace shardfit::calibrate {

/// Gradients of attention with a causal mask (Dao et al. 2022, appendix B).
template <class A, class In>
class SmallAttention : SmallInputs<A, In> {
  using Base = SmallInputs<A, In>;
  using Base::s_, Base::n_, Base::back_, Base::in, Base::a, Base::b, Base::d, Base::f, Base::df,
      Base::total, Base::sigmoid, Base::whole;
  using typename Base::F;

 public:
  using Base::Base;
  SHARDFIT_BOTH A at(std::int64_t row, std::int64_t j) const {
    const std::int64_t head = row / s_.tokens * s_.tokens, which = j / n_, at = j % n_;
    const F scale = 1 / std::sqrt(static_cast<F>(n_));
    F result = 0;
    // Gradients of a query come from its row of scores; of a key and a value from their column.
    const std::int64_t end = which == 0 ? row + 1 : head + s_.tokens;
    for (std::int64_t q = row; q < end; ++q) {
      F top = -INFINITY, sum = 0, along = 0;
      for (std::int64_t k = head; k <= q; ++k) {
        const F score = times(0, q, 1, k) * scale;
        top = score > top ? score : top;
      }
      for (std::int64_t k = head; k <= q; ++k) {
        const F weight = std::exp(times(0, q, 1, k) * scale - top);
        sum += weight;
        along += weight * times(3, q, 2, k);
      }
      const auto share = [&](std::int64_t k) {
        return std::exp(times(0, q, 1, k) * scale - top) / sum;
      };
      if (which == 2) {
        result += share(row) * static_cast<F>(in(3, q, at));
      } else if (which == 1) {
        const F slope = share(row) * (times(3, q, 2, row) - along / sum);
        result += slope * scale * static_cast<F>(in(0, q, at));
      } else {
        for (std::int64_t k = head; k <= q; ++k) {
          const F slope = share(k) * (times(3, q, 2, k) - along / sum);
          result += slope * scale * static_cast<F>(in(1, k, at));
        }
      }
    }
    return static_cast<A>(result);
  }

 private:
  SHARDFIT_BOTH F times(int x, std::int64_t i, int y, std::int64_t k) const {
    return total(
        [&](std::int64_t e) { return static_cast<F>(in(x, i, e)) * static_cast<F>(in(y, k, e)); });
  }
};

}  // namespace shardfit::calibrate
