// References in double precision. Inputs: product a (seed 1), b (2); attention q, k, v (1, 2, 3);
// adamw parameter, gradient, mean (1, 2, 3), second moment 0; the others in
// smoke_small_reference.cc.
#include <algorithm>
#include <cmath>

#include "calibrate/smoke.h"
#include "calibrate/values.h"

namespace shardfit::calibrate {
namespace {

constexpr double single = 0x1p-23;  // one unit in the last place of 1

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
      case SmokeTest::adamw:
        adamw();
        break;
      case SmokeTest::rows:
      case SmokeTest::small:
        return small_reference(c_);
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
    out_.tolerances.push_back(std::fabs(value) * (relative + unit_of(dtype)) + absolute);
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

  void adamw() {
    for (std::int64_t i = 0; i < c_.small.rows * c_.small.columns; ++i) {
      const double p = value_at(1, i), g = value_at(2, i), m = value_at(3, i);
      const double mean = 0.9 * m + 0.1 * g, square = 0.001 * g * g;
      const double step = mean / 0.1 / (std::sqrt(square / 0.001) + 1e-8);
      // Where the gradient is near 0 the step is large, and so is the error of its division.
      add(p * (1 - 1e-3 * 0.01) - 1e-3 * step, 1e-5, 1e-6 + 1e-8 * std::fabs(step), DType::f32);
    }
  }

  const SmokeCase& c_;
  const ProductShape& s_;
  Reference out_;
};

}  // namespace

double unit_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return single;
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0;
  }
}

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
