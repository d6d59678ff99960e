// References in double precision. Inputs: product a (seed 1), b (2); attention q, k, v (1, 2, 3);
// add and mul 1, 2; cross entropy logits (1) with label row % columns; gather table (1) with index
// 7 * row % rows; adamw parameter, gradient, mean (1, 2, 3), second moment 0.
#include <algorithm>
#include <cmath>

#include "calibrate/smoke.h"
#include "calibrate/values.h"

namespace shardfit::calibrate {
namespace {

constexpr double single = 0x1p-23;  // one unit in the last place of 1

double epsilon(DType dtype) {
  if (dtype == DType::bf16) return 0x1p-7;
  return dtype == DType::f16 ? 0x1p-10 : single;
}

class Maker {
 public:
  explicit Maker(const SmokeCase& c) : c_(c), s_(c.shape) {}

  Reference make() {
    switch (c_.test) {
      case SmokeTest::none:
        break;
      case SmokeTest::product:
        product();
        break;
      case SmokeTest::attention:
        attention();
        break;
      case SmokeTest::softmax:
      case SmokeTest::cross_entropy:
        softmax();
        break;
      case SmokeTest::rms_norm:
      case SmokeTest::layer_norm:
        norm();
        break;
      case SmokeTest::row_sum:
        row_sum();
        break;
      case SmokeTest::gather:
        gather();
        break;
      case SmokeTest::adamw:
        adamw();
        break;
      case SmokeTest::elementwise:
        elementwise();
        break;
    }
    return std::move(out_);
  }

 private:
  double in(std::uint32_t seed, std::int64_t index) const {
    return rounded_to(c_.dtype, value_at(seed, index));
  }
  /// `relative` to the value's own size, rounding to the output's dtype included.
  void add(double value, double relative, double absolute, DType dtype) {
    out_.values.push_back(value);
    out_.tolerances.push_back(std::fabs(value) * (relative + epsilon(dtype)) + absolute);
  }

  /// The error of a sum of k products in fp32 is at most k units of the sum of their sizes
  /// (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
  void product() {
    for (std::int64_t g = 0; g < s_.groups; ++g) {
      for (std::int64_t i = 0; i < s_.m; ++i) {
        for (std::int64_t j = 0; j < s_.n; ++j) {
          double sum = 0, size = 0;
          for (std::int64_t k = 0; k < s_.k; ++k) {
            const double x = in(1, (g * s_.m + i) * s_.k + k) * in(2, (g * s_.k + k) * s_.n + j);
            sum += x;
            size += std::fabs(x);
          }
          add(sum, 0, size * static_cast<double>(s_.k) * single, c_.dtype);
        }
      }
    }
  }

  void attention() {
    const double scale = 1 / std::sqrt(static_cast<double>(s_.k));
    const auto at = [&](std::uint32_t seed, std::int64_t g, std::int64_t row, std::int64_t i) {
      return in(seed, (g * s_.m + row) * s_.k + i);
    };
    for (std::int64_t g = 0; g < s_.groups; ++g) {
      for (std::int64_t q = 0; q < s_.m; ++q) {
        std::vector<double> weights;
        double sum = 0;
        for (std::int64_t k = 0; k <= q; ++k) {
          double score = 0;
          for (std::int64_t i = 0; i < s_.k; ++i) score += at(1, g, q, i) * at(2, g, k, i);
          weights.push_back(std::exp(score * scale));
          sum += weights.back();
        }
        for (std::int64_t i = 0; i < s_.k; ++i) {
          double value = 0;
          for (std::int64_t k = 0; k <= q; ++k) {
            value += weights[static_cast<std::size_t>(k)] * at(3, g, k, i) / sum;
          }
          add(value, 0, 1e-4, c_.dtype);
        }
      }
    }
  }

  void softmax() {
    const bool loss = c_.test == SmokeTest::cross_entropy;
    for (std::int64_t r = 0; r < s_.m; ++r) {
      double sum = 0;
      for (std::int64_t i = 0; i < s_.n; ++i) sum += std::exp(in(1, r * s_.n + i));
      if (loss) {
        add(std::log(sum) - in(1, r * s_.n + r % s_.n), 0, 1e-5, DType::f32);
        continue;
      }
      for (std::int64_t i = 0; i < s_.n; ++i) {
        add(std::exp(in(1, r * s_.n + i)) / sum, 1e-5, 0, c_.dtype);
      }
    }
  }

  void norm() {
    for (std::int64_t r = 0; r < s_.m; ++r) {
      double mean = 0, square = 0;
      const auto n = static_cast<double>(s_.n);
      if (c_.test == SmokeTest::layer_norm) {
        for (std::int64_t i = 0; i < s_.n; ++i) mean += in(1, r * s_.n + i) / n;
      }
      for (std::int64_t i = 0; i < s_.n; ++i) {
        square += std::pow(in(1, r * s_.n + i) - mean, 2) / n;
      }
      for (std::int64_t i = 0; i < s_.n; ++i) {
        add((in(1, r * s_.n + i) - mean) / std::sqrt(square + 1e-6), 1e-5, 1e-5, c_.dtype);
      }
    }
  }

  void row_sum() {
    for (std::int64_t r = 0; r < s_.m; ++r) {
      double sum = 0, size = 0;
      for (std::int64_t i = 0; i < s_.n; ++i) {
        sum += in(1, r * s_.n + i);
        size += std::fabs(in(1, r * s_.n + i));
      }
      add(sum, 0, size * static_cast<double>(s_.n) * single, DType::f32);
    }
  }

  void gather() {
    for (std::int64_t r = 0; r < s_.m; ++r) {
      for (std::int64_t i = 0; i < s_.n; ++i) {
        add(in(1, 7 * r % s_.m * s_.n + i), 0, 1e-30, c_.dtype);
      }
    }
  }

  void adamw() {
    for (std::int64_t i = 0; i < s_.m * s_.n; ++i) {
      const double p = value_at(1, i), g = value_at(2, i), m = value_at(3, i);
      const double mean = 0.9 * m + 0.1 * g, square = 0.001 * g * g;
      const double step = mean / 0.1 / (std::sqrt(square / 0.001) + 1e-8);
      // Where the gradient is near 0 the step is large, and so is the error of its division.
      add(p * (1 - 1e-3 * 0.01) - 1e-3 * step, 1e-5, 1e-6 + 1e-8 * std::fabs(step), DType::f32);
    }
  }

  double formula(double a, double b) const {
    switch (c_.op) {
      case Op::copy:
        return a;
      case Op::add:
        return a + b;
      case Op::sub:
        return a - b;
      case Op::mul:
        return a * b;
      case Op::div:
        return a / (1.5 + b);
      case Op::lerp:
        return 0.9 * a + 0.1 * b;
      case Op::addcmul:
        return a + b * b / 2;
      case Op::addcdiv:
        return a + b / (3 + 2 * a);
      case Op::neg:
        return 0 - a;
      case Op::sin:
        return std::sin(a);
      case Op::cos:
        return std::cos(a);
      case Op::tanh:
        return 1 - 2 / (std::exp(2 * a) + 1);
      case Op::sqrt:
        return std::sqrt(std::fabs(a));
      case Op::rsqrt:
        return std::pow(std::fabs(a) + 0.1, -0.5);
      case Op::reciprocal:
        return 2 / (3 + 2 * a);
      case Op::square:
        return std::pow(a, 2);
      case Op::silu:
        return a * (1 - 1 / (1 + std::exp(a)));
      case Op::gelu:
        return a * std::erfc(-a / std::sqrt(2.0)) / 2;
      case Op::relu:
        return std::max(a, 0.0);
      case Op::exp:
        return std::exp(a);
    }
    return a;
  }

  void elementwise() {
    for (std::int64_t i = 0; i < s_.m * s_.n; ++i) {
      const double a = in(1, i), b = in(2, i);
      add(formula(a, b), 1e-6, 1e-6, c_.dtype);
    }
  }

  const SmokeCase& c_;
  const ProductShape& s_;
  Reference out_;
};

}  // namespace

double rounded_to(DType dtype, double value) {
  const auto single_value = static_cast<float>(value);
  if (!is_half(dtype)) return single_value;
  if (value == 0) return 0;
  // bf16 keeps 8 bits of the significand, fp16 11; below 2^-14 fp16 counts in steps of 2^-24.
  const int bits = dtype == DType::bf16 ? 8 : 11;
  int exponent = 0;
  std::frexp(single_value, &exponent);
  int step = exponent - bits;
  if (dtype == DType::f16) step = std::max(step, -24);
  return std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(single_value), -step)), step);
}

Reference reference_of(const SmokeCase& c) { return Maker(c).make(); }

}  // namespace shardfit::calibrate
