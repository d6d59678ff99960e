// References of small operators, in double precision. Results come from formulas of their own;
// gradients from them by central differences, so that no derivative is written twice.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "calibrate/smoke.h"

namespace shardfit::calibrate {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double sigmoid(double x) { return (1 + std::tanh(x / 2)) / 2; }

double function(Small what, double x) {
  switch (what) {
    case Small::sin:
      return std::cos(x - std::acos(0.0));
    case Small::cos:
      return 1 - 2 * std::pow(std::sin(x / 2), 2);
    case Small::tanh:
      return 1 - 2 / (std::exp(2 * x) + 1);
    case Small::sqrt:
      return std::pow(std::fabs(x) + 0.1, 0.5);
    case Small::rsqrt:
      return std::pow(std::fabs(x) + 0.1, -0.5);
    case Small::reciprocal:
      return 2 / (3 + 2 * x);
    case Small::square:
      return std::pow(x, 2);
    case Small::exp:
      return std::exp2(x / std::log(2.0));
    case Small::log:
      return std::log1p(0.5 + x);
    case Small::sigmoid:
      return sigmoid(x);
    case Small::softplus:
      return std::log(1 + std::exp(x));
    case Small::silu:
      return x * sigmoid(x);
    case Small::gelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case Small::gelu_tanh:
      return x * sigmoid(2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * std::pow(x, 3)));
    case Small::relu:
      return std::max(x, 0.0);
    case Small::neg:
      return 0 - x;
    case Small::abs:
      return std::fabs(x);
    case Small::sgn:
      return x == 0 ? 0 : std::copysign(1, x);
    case Small::invert:
    case Small::isneginf:
      return what == Small::invert ? x <= 0 : x < 0;
    default:
      return x;
  }
}

double of_two(Small what, double x, double y, double z) {
  switch (what) {
    case Small::add:
      return x + y;
    case Small::sub:
      return x - y;
    case Small::mul:
      return x * y;
    case Small::div:
      return 2 * x / (3 + 2 * y);
    case Small::floor_divide:
      return std::floor(x / (3 + std::fabs(y)));
    case Small::lerp:
      return 0.9 * x + 0.1 * y;
    case Small::addcmul:
      return x + y * y / 2;
    case Small::addcdiv:
      return x + y / (3 + 2 * x);
    case Small::minimum:
      return std::min(x, y);
    case Small::less:
      return x < y;
    case Small::both:
      return std::min(x, y) > 0;
    case Small::where:
      return x > 0 ? y : z;
    case Small::masked_fill:
      return y > 0 ? 3 : x;
    case Small::dropout:  // with the mask b, as its gradient takes it
      return y > 0 ? x / (1 - dropout_share) : 0;
    case Small::adamw: {
      const double mean = 0.9 * z + 0.1 * y;
      return x - 1e-3 * 0.01 * x - 1e-3 * mean / 0.1 / (std::fabs(y) + 1e-8);
    }
    default:
      return function(what, x);
  }
}

class SmallMaker {
 public:
  explicit SmallMaker(const SmokeCase& c) : c_(c), s_(c.small) {
    for (int input = 0; input < 4; ++input) {
      const std::int64_t wide = input_a_row(s_, input);
      for (std::int64_t r = 0; r < s_.rows; ++r) {
        in_[input].emplace_back();
        for (std::int64_t j = 0; j < wide; ++j) {
          in_[input].back().push_back(smoke_input(c, input, r * wide + j));
        }
      }
    }
  }

  std::vector<double> values() {
    if (s_.what == Small::attention) return attention_gradients();
    std::vector<double> values;
    for (std::int64_t r = 0; r < s_.rows; ++r) {
      const Row row = s_.backward ? gradient(r) : result(r, in_[0]);
      values.insert(values.end(), row.begin(), row.end());
    }
    return values;
  }

  /// The sum of the sizes of a row's numbers: what the rounding of a sum is bounded by.
  double size(std::int64_t row) const {
    double sum = 0;
    for (const double x : in_[0][at(row)]) sum += std::fabs(x);
    return sum;
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  /// Of input a as it stands in `a`: where an operator picks places, it picks them by in_[0].
  Row result(std::int64_t r, const Rows& all) const {
    const Row &a = all[at(r)], &b = in_[1][at(r)], &c = in_[2][at(r)];
    if (s_.what >= Small::max_pool) return places(r, all, b);
    if (s_.what >= Small::sum) return of_row(r, a, b);
    Row out;
    for (std::size_t j = 0; j < a.size(); ++j) {
      const std::size_t twin = j ^ 1;
      if (s_.what == Small::complex_mul) {
        out.push_back(j % 2 ? a[j] * b[twin] + a[twin] * b[j] : a[j] * b[j] - a[twin] * b[twin]);
      } else if (s_.what == Small::conj) {
        out.push_back(j % 2 ? -a[j] : a[j]);
      } else if (s_.what == Small::tril) {
        out.push_back(static_cast<std::int64_t>(j) > r ? 0 : a[j]);
      } else if (s_.what == Small::fill || s_.what == Small::zeros) {
        out.push_back(s_.what == Small::zeros ? 0 : is_floating(c_.dtype) ? 0.75 : 1);
      } else {
        out.push_back(of_two(s_.what, a[j], b[j], c[j]));
      }
    }
    return out;
  }

  Row of_row(std::int64_t r, const Row& a, const Row& b) const {
    const auto n = static_cast<double>(a.size());
    double sum = 0, square = 0, power = 0, off = 0, entropy = 0;
    Row running;
    for (std::size_t j = 0; j < a.size(); ++j) {
      running.push_back(sum += a[j]);
      square += a[j] * a[j];
      power += std::exp(a[j]);
      if (s_.what == Small::lstm_cell) continue;
      off += std::pow(a[j] - b[j], 2);
      entropy -= std::log(sigmoid(b[j] > 0 ? a[j] : -a[j]));
    }
    switch (s_.what) {
      case Small::sum:
        return {sum};
      case Small::mean:
        return {sum / n};
      case Small::norm:
        return {std::sqrt(square)};
      case Small::all:
        return {r % 2 == 0 || *std::min_element(a.begin(), a.end()) > 0 ? 1.0 : 0.0};
      case Small::cumsum:
        return running;
      case Small::nll_loss:
        return {-a[at(r) % a.size()]};
      case Small::mse_loss:
        return {off / n};
      case Small::bce_loss:
        return {entropy / n};
      case Small::sort:
      case Small::topk:
        return sorted(in_[0][at(r)], a);
      case Small::lstm_cell:
        return lstm(a, b);
      default:
        break;
    }
    Row out;
    const double variance = square / n - std::pow(sum / n, 2);
    for (const double x : a) {
      switch (s_.what) {
        case Small::softmax:
          out.push_back(std::exp(x) / power);
          break;
        case Small::log_softmax:
          out.push_back(x - std::log(power));
          break;
        case Small::rms_norm:
          out.push_back(x / std::sqrt(square / n + 1e-6));
          break;
        case Small::layer_norm:
          out.push_back((x - sum / n) / std::sqrt(variance + 1e-6));
          break;
        default:  // weight_norm
          out.push_back(x * b[0] / std::sqrt(square));
      }
    }
    return out;
  }

  /// Values of `a` in the order of `key`, and their places.
  Row sorted(const Row& key, const Row& a) const {
    std::vector<std::size_t> order(key.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
      return s_.what == Small::sort ? key[x] < key[y] : key[x] > key[y];
    });
    if (s_.what == Small::topk) order.resize(order.size() / 4);
    Row out;
    for (const std::size_t place : order) out.push_back(a[place]);
    for (const std::size_t place : order) out.push_back(static_cast<double>(place));
    return out;
  }

  Row lstm(const Row& gates, const Row& old) const {
    Row hidden, cells;
    const std::size_t n = old.size();
    for (std::size_t j = 0; j < n; ++j) {
      const double kept = sigmoid(gates[n + j]) * old[j];
      cells.push_back(kept + sigmoid(gates[j]) * std::tanh(gates[2 * n + j]));
      hidden.push_back(sigmoid(gates[3 * n + j]) * std::tanh(cells.back()));
    }
    hidden.insert(hidden.end(), cells.begin(), cells.end());
    return hidden;
  }

  Row max_pool(const Row& key, const Row& a) const {
    constexpr std::int64_t high = SmallShape::high, wide = SmallShape::wide;
    Row values, where;
    for (std::int64_t y = 0; y < high; y += 2) {
      for (std::int64_t x = 0; x < wide; x += 2) {
        std::size_t best =
            at(std::max<std::int64_t>(y - 1, 0) * wide + std::max<std::int64_t>(x - 1, 0));
        for (std::int64_t v = std::max<std::int64_t>(y - 1, 0); v <= y + 1; ++v) {
          for (std::int64_t u = std::max<std::int64_t>(x - 1, 0); u <= x + 1; ++u) {
            if (key[at(v * wide + u)] > key[best]) best = at(v * wide + u);
          }
        }
        values.push_back(a[best]);
        where.push_back(static_cast<double>(best));
      }
    }
    values.insert(values.end(), where.begin(), where.end());
    return values;
  }

  Row averages(const Row& a, std::int64_t side) const {
    constexpr std::int64_t wide = SmallShape::wide;
    Row out(a.size() / at(side * side));
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      out[at(place / wide / side * (wide / side) + place % wide / side)] +=
          a[i] / static_cast<double>(side * side);
    }
    return out;
  }

  Row places(std::int64_t r, const Rows& all, const Row& b) const {
    const Row& a = all[at(r)];
    const auto n = static_cast<std::ptrdiff_t>(a.size());
    Row out;
    const auto append = [&](const Row& from, std::ptrdiff_t begin, std::ptrdiff_t end) {
      out.insert(out.end(), from.begin() + begin, from.begin() + end);
    };
    switch (s_.what) {
      case Small::max_pool:
        return max_pool(in_[0][at(r)], a);
      case Small::avg_pool:
        return averages(a, 2);
      case Small::adaptive_avg_pool:
        return averages(a, 4);
      case Small::upsample: {
        constexpr std::ptrdiff_t wide = SmallShape::wide;
        for (std::ptrdiff_t y = 0; y < 2 * SmallShape::high; ++y) {
          for (std::ptrdiff_t x = 0; x < 2 * wide; ++x) {
            out.push_back(a[at(y / 2 * wide + x / 2)]);
          }
        }
        return out;
      }
      case Small::pad:
        out.assign(4, 0);
        append(a, 0, n);
        out.resize(out.size() + 4);
        return out;
      case Small::roll:
        out = a;
        std::rotate(out.begin(), out.end() - 5, out.end());
        return out;
      case Small::tile:
      case Small::cat:
        out = a;
        append(s_.what == Small::tile ? a : b, 0, n);
        return out;
      case Small::stack:
        for (std::size_t j = 0; j < a.size(); ++j) out.insert(out.end(), {a[j], b[j]});
        return out;
      case Small::chunk_cat:
        for (const std::ptrdiff_t from : {std::ptrdiff_t{0}, n / 2}) {
          append(a, from, from + n / 2);
          append(b, from, from + n / 2);
        }
        return out;
      case Small::split:
        for (const std::ptrdiff_t part : {0, 2, 1, 3}) append(a, part * n / 4, (part + 1) * n / 4);
        return out;
      case Small::gather:
        for (std::size_t j = 0; j < a.size(); ++j) out.push_back(a[5 * j * j % a.size()]);
        return out;
      default: {
        out = all[at(r * r % s_.rows)];
        if (s_.what != Small::embedding_bag) return out;
        const Row& more = all[at((r + 1) * (r + 1) % s_.rows)];
        std::transform(out.begin(), out.end(), more.begin(), out.begin(), std::plus<>());
        return out;
      }
    }
  }

  /// Central differences of the results weighed by d, over the row's numbers.
  Row gradient(std::int64_t row) {
    const bool table = s_.what == Small::embedding || s_.what == Small::embedding_bag;
    Rows moved = in_[0];
    Row out;
    for (double& x : moved[at(row)]) {
      const double here = x;
      const auto weighed = [&](double there) {
        x = there;
        double sum = 0;
        for (std::int64_t r = table ? 0 : row; r < (table ? s_.rows : row + 1); ++r) {
          if (table && r * r % s_.rows != row && (r + 1) * (r + 1) % s_.rows != row) continue;
          const Row y = result(r, moved);
          for (std::size_t j = 0; j < in_[3][at(r)].size(); ++j) sum += in_[3][at(r)][j] * y[j];
        }
        return sum;
      };
      const double up = weighed(here + step), down = weighed(here - step);
      x = here;
      out.push_back((up - down) / (2 * step));
    }
    return out;
  }

  /// The results of one head weighed by d.
  double attended(const Rows (&in)[4], std::int64_t head) const {
    const auto first = at(head * s_.tokens), end = first + at(s_.tokens);
    const auto width = in[0][first].size();
    double sum = 0;
    for (std::size_t q = first; q < end; ++q) {
      double total = 0, weighed = 0;
      for (std::size_t k = first; k <= q; ++k) {
        const double score =
            std::inner_product(in[0][q].begin(), in[0][q].end(), in[1][k].begin(), 0.0);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
        total += weight;
        weighed +=
            weight * std::inner_product(in[2][k].begin(), in[2][k].end(), in[3][q].begin(), 0.0);
      }
      sum += weighed / total;
    }
    return sum;
  }

  std::vector<double> attention_gradients() {
    std::vector<double> out;
    for (std::int64_t row = 0; row < s_.rows; ++row) {
      for (int input = 0; input < 3; ++input) {
        for (double& x : in_[input][at(row)]) {
          const double here = x;
          x = here + step;
          const double up = attended(in_, row / s_.tokens);
          x = here - step;
          out.push_back((up - attended(in_, row / s_.tokens)) / (2 * step));
          x = here;
        }
      }
    }
    return out;
  }

  /// Errors of the differences are some step squared and 1e-16 / step: 1e-10 of the numbers here.
  static constexpr double step = 1e-5;

  const SmokeCase& c_;
  const SmallShape& s_;
  Rows in_[4];
};

/// What a right kernel may be off by, beside the rounding of its result.
double tolerance(const SmokeCase& c, double value, double size) {
  constexpr double exact = 1e-30, single = 0x1p-23;
  const Small what = c.small.what;
  const DType result = small_result(what, c.dtype);
  if (!is_floating(result)) return exact;
  if (c.dtype == DType::f64) return (c.small.backward ? 1e-7 : 1e-12) * (1 + std::fabs(value));
  if (what == Small::sum || what == Small::cumsum || what == Small::mean) {
    // The error of a sum of n numbers is at most n units of the sum of their sizes (Higham,
    // Accuracy and Stability of Numerical Algorithms, 4.2).
    const double n = what == Small::mean ? 1 : static_cast<double>(c.small.columns);
    return exact + (c.small.backward ? 0 : n * single * size) + 1e-6 * std::fabs(value);
  }
  // Where a gradient is near 0, AdamW's step is large, and so is the error of its division.
  if (what == Small::adamw) return 1e-5 * (1 + std::fabs(value));
  const bool sums = what == Small::attention || what >= Small::softmax;
  return (sums ? 1e-5 : 2e-6) * (1 + std::fabs(value));
}

}  // namespace

double smoke_input(const SmokeCase& c, int input, std::int64_t index) {
  const float value = value_at(static_cast<std::uint32_t>(input + 1), index);
  if (c.dtype == DType::boolean) return value > 0;
  if (!is_floating(c.dtype))
    return std::floor(static_cast<double>(value) * static_cast<double>(small_reach(c)) + 0.5);
  return rounded_to(c.dtype, value);
}

std::int64_t small_reach(const SmokeCase& c) {
  return is_floating(small_result(c.small.what, c.dtype)) ? 1 : 1000;
}

DType small_result(Small what, DType dtype) {
  switch (what) {
    case Small::less:
    case Small::both:
    case Small::invert:
    case Small::isneginf:
    case Small::all:
      return DType::boolean;
    default:
      break;
  }
  if (is_floating(dtype)) return dtype;
  const bool whole = what <= Small::sub || what == Small::mul || what == Small::floor_divide ||
                     (what >= Small::minimum && what <= Small::sgn) || what == Small::square ||
                     what == Small::relu || (what >= Small::where && what <= Small::conj) ||
                     what == Small::sum || what == Small::cumsum || what == Small::nll_loss ||
                     what == Small::sort || what == Small::topk || what == Small::max_pool ||
                     what >= Small::upsample;
  if (!whole || what == Small::attention) return DType::f32;
  const bool moves = what == Small::copy || what == Small::zeros || what == Small::fill ||
                     what == Small::where || what == Small::tril || what >= Small::upsample;
  return dtype == DType::boolean && !moves ? DType::i64 : dtype;
}

Reference small_reference(const SmokeCase& c) {
  SmallMaker maker(c);
  Reference reference;
  reference.values = maker.values();
  const auto wide = result_a_row(c.small);
  for (std::size_t i = 0; i < reference.values.size(); ++i) {
    const double value = reference.values[i];
    const double size = maker.size(static_cast<std::int64_t>(i) / wide);
    reference.tolerances.push_back(tolerance(c, value, size) +
                                   std::fabs(value) * unit_of(small_result(c.small.what, c.dtype)));
  }
  return reference;
}

double dropout_error(const SmokeCase& c, const std::vector<double>& got) {
  const std::int64_t n = c.small.columns;
  if (static_cast<std::int64_t>(got.size()) != c.small.rows * 2 * n) return HUGE_VAL;
  double worst = 0, kept = 0;
  for (std::int64_t i = 0; i < c.small.rows * n; ++i) {
    const auto place = static_cast<std::size_t>(i / n * 2 * n + i % n);
    const double mask = got[place + static_cast<std::size_t>(n)];
    if (mask != 0 && mask != 1) return HUGE_VAL;
    kept += mask;
    const double right = mask * smoke_input(c, 0, i) / (1 - dropout_share);
    const double error =
        std::fabs(got[place] - right) / (1e-6 + std::fabs(right) * (1e-6 + unit_of(c.dtype)));
    if (!(error <= worst)) worst = std::isnan(error) ? HUGE_VAL : error;
  }
  const auto count = static_cast<double>(c.small.rows * n);
  const double deviation = std::sqrt(dropout_share * (1 - dropout_share) / count);
  return std::max(worst, std::fabs(kept / count - (1 - dropout_share)) / (5 * deviation));
}

}  // namespace shardfit::calibrate
