#pragma once
// Quantities with their unit in the type. `Bytes + 1` and `Bytes + Flops` do not compile.

#include <cassert>
#include <compare>
#include <cstdint>
#include <stdexcept>

namespace shardfit {

/// Thrown where a byte count would leave the range of 63 bits; never wrapped round.
struct OverflowError : std::overflow_error {
  using std::overflow_error::overflow_error;
};

/// a + b, a * b in 64 bits; throws OverflowError instead of wrapping.
inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_add_overflow(a, b, &r)) throw OverflowError("sum exceeds 63 bits");
  return r;
}
inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) throw OverflowError("product exceeds 63 bits");
  return r;
}

/// A signed count of bytes.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t count) : count_(count) {}
  constexpr std::int64_t count() const { return count_; }
  constexpr auto operator<=>(const Bytes&) const = default;

  friend Bytes operator+(Bytes a, Bytes b) { return Bytes(checked_add(a.count_, b.count_)); }
  friend Bytes operator-(Bytes a, Bytes b) { return Bytes(checked_add(a.count_, -b.count_)); }
  friend Bytes operator*(Bytes a, std::int64_t n) { return Bytes(checked_multiply(a.count_, n)); }
  friend Bytes operator*(std::int64_t n, Bytes a) { return a * n; }
  friend constexpr Bytes operator/(Bytes a, std::int64_t n) { return Bytes(a.count_ / n); }
  friend constexpr double operator/(Bytes a, Bytes b) {
    return static_cast<double>(a.count_) / static_cast<double>(b.count_);
  }
  Bytes& operator+=(Bytes b) { return *this = *this + b; }
  Bytes& operator-=(Bytes b) { return *this = *this - b; }
  constexpr Bytes operator-() const { return Bytes(-count_); }

 private:
  std::int64_t count_ = 0;
};

/// A double with a unit; Tag makes the types distinct.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}
  constexpr double value() const { return value_; }
  constexpr auto operator<=>(const Quantity&) const = default;

  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value_ + b.value_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value_ - b.value_);
  }
  friend constexpr Quantity operator*(Quantity a, double n) { return Quantity(a.value_ * n); }
  friend constexpr Quantity operator*(double n, Quantity a) { return a * n; }
  friend constexpr Quantity operator/(Quantity a, double n) { return Quantity(a.value_ / n); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }
  Quantity& operator+=(Quantity b) { return *this = *this + b; }

 private:
  double value_ = 0;
};

using Flops = Quantity<struct FlopsTag>;
using Seconds = Quantity<struct SecondsTag>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag>;

constexpr Seconds operator/(Bytes a, BytesPerSecond b) {
  return Seconds(static_cast<double>(a.count()) / b.value());
}
constexpr Seconds operator/(Flops a, FlopsPerSecond b) { return Seconds(a.value() / b.value()); }

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes(static_cast<std::int64_t>(n)); }
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 10);
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 20);
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 30);
}
}  // namespace literals

}  // namespace shardfit
