#pragma once
#include "calibrate/small/inputs.h"

namespace shardfit::calibrate {

/// Operators that take each number by itself.
template <class A, class In>
class SmallElements : SmallInputs<A, In> {
  using Base = SmallInputs<A, In>;
  using Base::s_, Base::n_, Base::back_, Base::in, Base::a, Base::b, Base::d, Base::f, Base::df,
      Base::total, Base::sigmoid, Base::whole;
  using typename Base::F;

 public:
  using Base::Base;
  SHARDFIT_BOTH A at(std::int64_t row, std::int64_t j) const {
    return back_ ? slope(row, j) : element(row, j);
  }

 private:
  SHARDFIT_BOTH A element(std::int64_t row, std::int64_t j) const {
    const A x = a(row, j % n_), y = b(row, j % n_);  // masks lie behind
    const F u = static_cast<F>(x), v = static_cast<F>(y);
    switch (s_.what) {
      case Small::add:
        return x + y;
      case Small::sub:
        return x - y;
      case Small::mul:
        return x * y;
      case Small::div:
        return static_cast<A>(u / (F(1.5) + v));
      case Small::floor_divide:
        return floor_divide(x, 3 + (y < 0 ? -y : y));
      case Small::lerp:
        return static_cast<A>(u + F(0.1) * (v - u));
      case Small::addcmul:
        return static_cast<A>(u + F(0.5) * v * v);
      case Small::addcdiv:
        return static_cast<A>(u + F(0.5) * v / (F(1.5) + u));
      case Small::minimum:
        return x < y ? x : y;
      case Small::neg:
        return -x;
      case Small::abs:
        return x < 0 ? -x : x;
      case Small::sgn:
        return static_cast<A>((x > 0) - (x < 0));
      case Small::less:
        return static_cast<A>(x < y);
      case Small::both:
        return static_cast<A>(x > 0 && y > 0);
      case Small::invert:
        return static_cast<A>(!(x > 0));
      case Small::isneginf:
        return static_cast<A>((x < 0 ? -F(INFINITY) : u) == -F(INFINITY));
      case Small::where:
        return x > 0 ? y : in(2, row, j);
      case Small::masked_fill:
        return y > 0 ? static_cast<A>(3) : x;
      case Small::tril:
        return j <= row ? x : A(0);
      case Small::fill:
        return static_cast<A>(whole ? 1 : 0.75);
      case Small::zeros:
        return A(0);
      case Small::complex_mul:
        return j % 2 == 0 ? x * y - a(row, j + 1) * b(row, j + 1)
                          : a(row, j - 1) * y + x * b(row, j - 1);
      case Small::conj:
        return j % 2 == 0 ? x : -x;
      case Small::square:
        return x * x;
      case Small::relu:
        return x > 0 ? x : A(0);
      case Small::adamw:
        return static_cast<A>(adamw(u, v, static_cast<F>(in(2, row, j))));
      case Small::dropout:
        return dropped(row, j);
      default:
        return static_cast<A>(function(u));
    }
  }

  SHARDFIT_BOTH F function(F x) const {
    switch (s_.what) {
      case Small::sin:
        return std::sin(x);
      case Small::cos:
        return std::cos(x);
      case Small::tanh:
        return std::tanh(x);
      case Small::sqrt:
        return std::sqrt(std::fabs(x) + F(0.1));
      case Small::rsqrt:
        return 1 / std::sqrt(std::fabs(x) + F(0.1));
      case Small::reciprocal:
        return 1 / (F(1.5) + x);
      case Small::exp:
        return std::exp(x);
      case Small::log:
        return std::log(F(1.5) + x);
      case Small::sigmoid:
        return sigmoid(x);
      case Small::softplus:
        return std::log1p(std::exp(x));
      case Small::silu:
        return x * sigmoid(x);
      case Small::gelu:
        return F(0.5) * x * (1 + std::erf(x * F(0.70710678118654752)));
      case Small::gelu_tanh:
        return F(0.5) * x * (1 + std::tanh(F(0.79788456080286536) * (x + F(0.044715) * x * x * x)));
      default:
        return x;
    }
  }

  /// The gradient of an element.
  SHARDFIT_BOTH A slope(std::int64_t row, std::int64_t j) const {
    const F x = static_cast<F>(a(row, j)), dy = static_cast<F>(d(row, j));
    return static_cast<A>(dy * derivative(x, row, j));
  }
  SHARDFIT_BOTH F derivative(F x, std::int64_t row, std::int64_t j) const {
    const F y = function(x), side = x < 0 ? F(-1) : F(1), s = sigmoid(x);
    switch (s_.what) {
      case Small::abs:
        return side;
      case Small::tanh:
        return 1 - y * y;
      case Small::sqrt:
        return side / (2 * y);
      case Small::rsqrt:
        return -side * y * y * y / 2;
      case Small::reciprocal:
        return -y * y;
      case Small::square:
        return 2 * x;
      case Small::exp:
        return y;
      case Small::log:
        return 1 / (F(1.5) + x);
      case Small::sigmoid:
        return y * (1 - y);
      case Small::softplus:
        return s;
      case Small::silu:
        return s * (1 + x * (1 - s));
      case Small::gelu:
        return F(0.5) * (1 + std::erf(x * F(0.70710678118654752))) +
               x * F(0.39894228040143268) * std::exp(-x * x / 2);
      case Small::gelu_tanh: {
        const F c = F(0.79788456080286536);
        const F t = std::tanh(c * (x + F(0.044715) * x * x * x));
        return F(0.5) * (1 + t) + F(0.5) * x * (1 - t * t) * c * (1 + F(3 * 0.044715) * x * x);
      }
      case Small::relu:
        return x > 0 ? F(1) : F(0);
      case Small::masked_fill:
        return b(row, j) > 0 ? F(0) : F(1);
      case Small::dropout:
        return b(row, j) > 0 ? F(1 / (1 - dropout_share)) : F(0);
      default:
        return 1;
    }
  }

  /// Rounded down.
  SHARDFIT_BOTH static A floor_divide(A x, A y) {
    if constexpr (whole) {
      return x / y - (x % y < 0);
    } else {
      return std::floor(x / y);
    }
  }

  /// As the kernel of the same name, of the first step with no second moment yet.
  SHARDFIT_BOTH static F adamw(F p, F g, F mean) {
    const F m = F(0.9) * mean + F(0.1) * g, v = F(0.001) * g * g;
    return p * (1 - F(1e-5)) - F(1e-3) * (m / F(0.1)) / (std::sqrt(v / F(0.001)) + F(1e-8));
  }

  SHARDFIT_BOTH A dropped(std::int64_t row, std::int64_t j) const {
    const std::int64_t place = row * n_ + j % n_;
    const auto block = static_cast<std::uint64_t>(place / 4);
    const Philox random =
        philox({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}},
               42, 0);
    const float uniform = static_cast<float>(random.word[place % 4] >> 8) / 16777216.0F;
    const bool kept = uniform >= static_cast<float>(dropout_share);
    if (j >= n_) return static_cast<A>(kept);
    return kept ? static_cast<A>(static_cast<F>(a(row, j)) / F(1 - dropout_share)) : A(0);
  }
};

}  // namespace shardfit::calibrate
