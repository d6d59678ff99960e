#pragma once
#include "calibrate/small/inputs.h"

namespace shardfit::calibrate {

/// Operators that take a row as a whole.
template <class A, class In>
class SmallRows : SmallInputs<A, In> {
  using Base = SmallInputs<A, In>;
  using Base::s_, Base::n_, Base::back_, Base::in, Base::a, Base::b, Base::d, Base::f, Base::df,
      Base::total, Base::sigmoid, Base::whole;
  using typename Base::F;

 public:
  using Base::Base;
  SHARDFIT_BOTH A at(std::int64_t row, std::int64_t j) const {
    const auto n = static_cast<F>(n_);
    switch (s_.what) {
      case Small::sum:
      case Small::cumsum: {
        A sum = 0;
        const std::int64_t end = s_.what == Small::sum ? n_ : j + 1;
        for (std::int64_t i = 0; i < end; ++i) sum += a(row, i);
        return sum;
      }
      case Small::mean:
        if (back_) return static_cast<A>(df(row, 0) / n);
        return static_cast<A>(total([&](std::int64_t i) { return f(row, i); }) / n);
      case Small::norm:
        return static_cast<A>(
            std::sqrt(total([&](std::int64_t i) { return f(row, i) * f(row, i); })));
      case Small::all: {  // every other row is true everywhere
        bool yes = true;
        for (std::int64_t i = 0; i < n_; ++i) yes = yes && (a(row, i) > 0 || row % 2 == 0);
        return static_cast<A>(yes);
      }
      case Small::nll_loss:
        if (back_) return j == row % n_ ? -d(row, 0) : A(0);
        return -a(row, row % n_);
      case Small::mse_loss: {
        const auto off = [&](std::int64_t i) { return f(row, i) - static_cast<F>(b(row, i)); };
        if (back_) return static_cast<A>(2 * off(j) * df(row, 0) / n);
        return static_cast<A>(total([&](std::int64_t i) { return off(i) * off(i); }) / n);
      }
      case Small::bce_loss: {
        if (back_) {
          const F label = b(row, j) > 0 ? F(1) : F(0);
          return static_cast<A>((sigmoid(f(row, j)) - label) * df(row, 0) / n);
        }
        return static_cast<A>(total([&](std::int64_t i) {
                                return std::log1p(std::exp(-std::fabs(f(row, i)))) +
                                       (f(row, i) > 0 ? f(row, i) : F(0)) -
                                       (b(row, i) > 0 ? f(row, i) : F(0));
                              }) /
                              n);
      }
      case Small::softmax:
      case Small::log_softmax:
        return static_cast<A>(softmax(row, j));
      case Small::sort:
      case Small::topk:
        return sorted(row, j);
      case Small::lstm_cell:
        return static_cast<A>(lstm(row, j));
      default:
        return static_cast<A>(normed(row, j));
    }
  }

 private:
  SHARDFIT_BOTH F softmax(std::int64_t row, std::int64_t j) const {
    F top = f(row, 0);
    for (std::int64_t i = 1; i < n_; ++i) top = f(row, i) > top ? f(row, i) : top;
    const F sum = total([&](std::int64_t i) { return std::exp(f(row, i) - top); });
    const auto share = [&](std::int64_t i) { return std::exp(f(row, i) - top) / sum; };
    const bool logarithm = s_.what == Small::log_softmax;
    if (!back_) return logarithm ? f(row, j) - top - std::log(sum) : share(j);
    const F weight = total([&](std::int64_t i) { return df(row, i) * (logarithm ? 1 : share(i)); });
    return logarithm ? df(row, j) - share(j) * weight : share(j) * (df(row, j) - weight);
  }

  /// rms_norm, layer_norm, weight_norm.
  SHARDFIT_BOTH F normed(std::int64_t row, std::int64_t j) const {
    const bool weight = s_.what == Small::weight_norm;
    const F n = weight ? F(1) : static_cast<F>(n_);
    const F length = weight ? static_cast<F>(b(row, 0)) : F(1);
    const bool centred = s_.what == Small::layer_norm;
    const F mean = centred ? total([&](std::int64_t i) { return f(row, i); }) / n : F(0);
    const auto x = [&](std::int64_t i) { return f(row, i) - mean; };
    const F square = total([&](std::int64_t i) { return x(i) * x(i); }) / n;
    const F scale = 1 / std::sqrt(square + (weight ? F(0) : F(1e-6)));
    if (!back_) return length * x(j) * scale;
    const F along = total([&](std::int64_t i) { return df(row, i) * x(i); }) * scale / n;
    const F middle = centred ? total([&](std::int64_t i) { return df(row, i); }) / n : F(0);
    return length * scale * (df(row, j) - middle - x(j) * scale * along);
  }

  /// The place of the number that comes `order`-th; ties in the order of places.
  SHARDFIT_BOTH std::int64_t place_of(std::int64_t row, std::int64_t order, bool rising) const {
    for (std::int64_t i = 0; i < n_; ++i) {
      if (order_of(row, i, rising) == order) return i;
    }
    return -1;
  }
  SHARDFIT_BOTH std::int64_t order_of(std::int64_t row, std::int64_t i, bool rising) const {
    std::int64_t before = 0;
    const A x = a(row, i);
    for (std::int64_t k = 0; k < n_; ++k) {
      const A y = a(row, k);
      before += (rising ? y < x : y > x) || (y == x && k < i);
    }
    return before;
  }
  SHARDFIT_BOTH A sorted(std::int64_t row, std::int64_t j) const {
    const bool rising = s_.what == Small::sort;
    const std::int64_t count = rising ? n_ : n_ / 4;
    if (back_) {
      const std::int64_t order = order_of(row, j, rising);
      return order < count ? d(row, order) : A(0);
    }
    const std::int64_t place = place_of(row, j % count, rising);
    return j < count ? a(row, place) : static_cast<A>(place);
  }

  SHARDFIT_BOTH F lstm(std::int64_t row, std::int64_t j) const {
    const std::int64_t at = j % n_;
    const F input = sigmoid(f(row, at)), forget = sigmoid(f(row, n_ + at));
    const F fresh = std::tanh(f(row, 2 * n_ + at)), output = sigmoid(f(row, 3 * n_ + at));
    const F old = static_cast<F>(b(row, at));
    const F cell = forget * old + input * fresh, bent = std::tanh(cell);
    if (!back_) return j < n_ ? output * bent : cell;
    const F dh = df(row, at), dc = df(row, n_ + at) + dh * output * (1 - bent * bent);
    const std::int64_t gate = j / n_;
    if (gate == 0) return dc * fresh * input * (1 - input);
    if (gate == 1) return dc * old * forget * (1 - forget);
    if (gate == 2) return dc * input * (1 - fresh * fresh);
    return dh * bent * output * (1 - output);
  }
};

}  // namespace shardfit::calibrate
