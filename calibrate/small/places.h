#pragma once
#include "calibrate/small/inputs.h"

namespace shardfit::calibrate {

/// Operators that move numbers, pick them or take them in windows.
template <class A, class In>
class SmallPlaces : SmallInputs<A, In> {
  using Base = SmallInputs<A, In>;
  using Base::s_, Base::n_, Base::back_, Base::in, Base::a, Base::b, Base::d, Base::f, Base::df,
      Base::total, Base::sigmoid, Base::whole;
  using typename Base::F;

 public:
  using Base::Base;
  SHARDFIT_BOTH A at(std::int64_t row, std::int64_t j) const {
    const std::int64_t half = n_ / 2;
    switch (s_.what) {
      case Small::max_pool: {
        const std::int64_t windows = n_ / 4;
        if (!back_) {
          const std::int64_t at = top_of(row, j % windows);
          return j < windows ? a(row, at) : static_cast<A>(at);
        }
        A sum = 0;
        for (std::int64_t w = 0; w < windows; ++w) sum += top_of(row, w) == j ? d(row, w) : A(0);
        return sum;
      }
      case Small::avg_pool:
        return averaged(row, j, 2);
      case Small::adaptive_avg_pool:
        return averaged(row, j, 4);
      case Small::upsample: {
        if (!back_) return a(row, j / (2 * wide) / 2 * wide + j % (2 * wide) / 2);
        const std::int64_t at = j / wide * 2 * (2 * wide) + j % wide * 2;
        return d(row, at) + d(row, at + 1) + d(row, at + 2 * wide) + d(row, at + 2 * wide + 1);
      }
      case Small::pad:
        if (back_) return d(row, j + 4);
        return j < 4 || j >= n_ + 4 ? A(0) : a(row, j - 4);
      case Small::roll:
        return back_ ? d(row, (j + 5) % n_) : a(row, (j + n_ - 5) % n_);
      case Small::tile:
        return back_ ? d(row, j) + d(row, j + n_) : a(row, j % n_);
      case Small::cat:
        return j < n_ ? a(row, j) : b(row, j - n_);
      case Small::stack:
        return j % 2 == 0 ? a(row, j / 2) : b(row, j / 2);
      case Small::chunk_cat: {
        const std::int64_t part = j / half, at = part / 2 * half + j % half;
        return part % 2 == 0 ? a(row, at) : b(row, at);
      }
      case Small::split: {
        const std::int64_t quarter = n_ / 4, part = j / quarter;
        const std::int64_t from = part == 1 ? 2 : part == 2 ? 1 : part;
        return a(row, from * quarter + j % quarter);
      }
      case Small::gather: {
        if (!back_) return a(row, gathered(j, n_));
        A sum = 0;
        for (std::int64_t i = 0; i < n_; ++i) sum += gathered(i, n_) == j ? d(row, i) : A(0);
        return sum;
      }
      default:
        return from_table(row, j);
    }
  }

 private:
  static constexpr std::int64_t high = SmallShape::high, wide = SmallShape::wide;

  /// The place of the largest number of window w of max_pool.
  SHARDFIT_BOTH std::int64_t top_of(std::int64_t row, std::int64_t w) const {
    std::int64_t best = -1;
    for (std::int64_t k = 0; k < 9; ++k) {
      const std::int64_t y = w / (wide / 2) * 2 - 1 + k / 3, x = w % (wide / 2) * 2 - 1 + k % 3;
      if (y < 0 || x < 0 || y >= high || x >= wide) continue;
      const std::int64_t at = y * wide + x;
      if (best < 0 || a(row, at) > a(row, best)) best = at;
    }
    return best;
  }

  /// Averages over windows of `side` squared.
  SHARDFIT_BOTH A averaged(std::int64_t row, std::int64_t j, std::int64_t side) const {
    const auto area = static_cast<F>(side * side);
    const std::int64_t across = wide / side;
    if (back_) return static_cast<A>(df(row, j / wide / side * across + j % wide / side) / area);
    F sum = 0;
    for (std::int64_t y = 0; y < side; ++y) {
      for (std::int64_t x = 0; x < side; ++x) {
        sum += f(row, (j / across * side + y) * wide + j % across * side + x);
      }
    }
    return static_cast<A>(sum / area);
  }

  /// embedding, and embedding_bag: the sum of two rows.
  SHARDFIT_BOTH A from_table(std::int64_t row, std::int64_t j) const {
    const bool bag = s_.what == Small::embedding_bag;
    if (!back_) {
      const A first = a(embedded(row, s_.rows), j);
      return bag ? first + a(embedded(row + 1, s_.rows), j) : first;
    }
    A sum = 0;
    for (std::int64_t r = 0; r < s_.rows; ++r) {
      if (embedded(r, s_.rows) == row) sum += d(r, j);
      if (bag && embedded(r + 1, s_.rows) == row) sum += d(r, j);
    }
    return sum;
  }
};

}  // namespace shardfit::calibrate
