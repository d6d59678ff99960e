#include "base/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace shardfit {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 6> binary_units{{{"B", 1},
                                            {"KiB", 0x1p10},
                                            {"MiB", 0x1p20},
                                            {"GiB", 0x1p30},
                                            {"TiB", 0x1p40},
                                            {"PiB", 0x1p50}}};
constexpr std::array<Unit, 11> all_byte_units{{{"B", 1},
                                               {"kB", 1e3},
                                               {"MB", 1e6},
                                               {"GB", 1e9},
                                               {"TB", 1e12},
                                               {"PB", 1e15},
                                               {"KiB", 0x1p10},
                                               {"MiB", 0x1p20},
                                               {"GiB", 0x1p30},
                                               {"TiB", 0x1p40},
                                               {"PiB", 0x1p50}}};
constexpr std::array<Unit, 6> byte_rate_units{
    {{"B/s", 1}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}, {"PB/s", 1e15}}};
constexpr std::array<Unit, 11> all_byte_rate_units{{{"B/s", 1},
                                                    {"kB/s", 1e3},
                                                    {"MB/s", 1e6},
                                                    {"GB/s", 1e9},
                                                    {"TB/s", 1e12},
                                                    {"PB/s", 1e15},
                                                    {"KiB/s", 0x1p10},
                                                    {"MiB/s", 0x1p20},
                                                    {"GiB/s", 0x1p30},
                                                    {"TiB/s", 0x1p40},
                                                    {"PiB/s", 0x1p50}}};
constexpr std::array<Unit, 7> flop_units{{{"FLOP", 1},
                                          {"kFLOP", 1e3},
                                          {"MFLOP", 1e6},
                                          {"GFLOP", 1e9},
                                          {"TFLOP", 1e12},
                                          {"PFLOP", 1e15},
                                          {"EFLOP", 1e18}}};
constexpr std::array<Unit, 12> flop_rate_units{{{"FLOP/s", 1},
                                                {"kFLOP/s", 1e3},
                                                {"MFLOP/s", 1e6},
                                                {"GFLOP/s", 1e9},
                                                {"TFLOP/s", 1e12},
                                                {"PFLOP/s", 1e15},
                                                {"FLOPS", 1},
                                                {"kFLOPS", 1e3},
                                                {"MFLOPS", 1e6},
                                                {"GFLOPS", 1e9},
                                                {"TFLOPS", 1e12},
                                                {"PFLOPS", 1e15}}};
constexpr std::array<Unit, 4> short_times{{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
constexpr std::array<Unit, 7> all_times{
    {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}}};

std::string fixed(double value, int decimals) {
  std::array<char, 400> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::fixed, decimals);
  return {text.data(), end.ptr};
}

/// Three significant digits; whole digits are never dropped.
std::string significant(double value, int least_decimals) {
  const double size = std::fabs(value);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return fixed(value, std::max(decimals, least_decimals));
}

/// `value` in the largest unit that leaves at least one; units ascend.
std::string in_units(double value, std::span<const Unit> units, int least_decimals = 0) {
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    // A value that would print as "1000.0" of one unit belongs to the next.
    const double step = unit.factor / best->factor;
    if (std::fabs(value) / best->factor >= step * (1 - 1e-4) && &unit != best) best = &unit;
  }
  return significant(value / best->factor, least_decimals) + " " + std::string(best->name);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

template <std::size_t n>
std::string names(const std::array<Unit, n>& units) {
  std::string out;
  for (const Unit& unit : units) {
    if (!out.empty()) out += ", ";
    out += unit.name;
  }
  return out;
}

/// The length of the decimal number at the start of `text`; 0 where there is none.
std::size_t number_length(std::string_view text) {
  std::size_t i = 0;
  std::size_t digits = 0;
  const auto skip_digits = [&] {
    const std::size_t from = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - from;
  };
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
  digits += skip_digits();
  if (i < text.size() && text[i] == '.') {
    ++i;
    digits += skip_digits();
  }
  if (digits == 0) return 0;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const std::size_t before = i++;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (skip_digits() == 0) i = before;
  }
  return i;
}

struct Amount {
  std::string_view number;
  double factor;
};

/// Number and unit of a quantity, or the problem with it.
Parsed<Amount> parse_amount(std::string_view text, std::span<const Unit> units) {
  text = trimmed(text);
  if (text.empty()) return {{}, "is empty"};
  const std::size_t length = number_length(text);
  if (length == 0) return {{}, "does not start with a number"};
  const std::string_view number = text.substr(0, length);
  const std::string_view name = trimmed(text.substr(length));
  if (name.empty()) return {{}, "has no unit"};
  if (number.front() == '-') return {{}, "is negative"};
  for (const Unit& unit : units) {
    if (unit.name == name) return {Amount{number, unit.factor}, ""};
  }
  return {{}, "has the unknown unit '" + std::string(name) + "'"};
}

template <class T>
Parsed<T> parse_quantity(std::string_view text, std::span<const Unit> units) {
  const Parsed<Amount> amount = parse_amount(text, units);
  if (!amount.value) return {{}, amount.problem};
  const std::optional<double> number = parse_real(amount.value->number);
  const double value = number ? *number * amount.value->factor : 0;
  if (!number || !std::isfinite(value)) return {{}, "is too large"};
  return {T(value), ""};
}

}  // namespace

std::string format_bytes(Bytes bytes) {
  const auto value = static_cast<double>(bytes.count());
  if (std::fabs(value) < 1024) return std::to_string(bytes.count()) + " B";
  return in_units(value, binary_units, 1);
}

std::string format_bytes_exact(Bytes bytes) { return format_count(bytes.count()) + " B"; }

std::string format_count(std::int64_t count) {
  std::array<char, 20> digits;
  const char* next = digits.data();
  const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), count).ptr;
  std::array<char, 28> text;  // with separators
  char* at = text.data();
  if (*next == '-') *at++ = *next++;
  for (auto left = end - next; left > 0; --left) {
    *at++ = *next++;
    if (left > 1 && left % 3 == 1) *at++ = ',';
  }
  return {text.data(), at};
}

std::string format_count_short(std::int64_t count) {
  constexpr std::array<Unit, 3> units{{{"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
  const auto value = static_cast<double>(count);
  if (std::fabs(value) < 999'500) return format_count(count);
  return in_units(value, units);
}

std::string format_rate(BytesPerSecond rate) { return in_units(rate.value(), byte_rate_units); }
std::string format_rate(FlopsPerSecond rate) {
  return in_units(rate.value(), std::span(flop_rate_units).first(6));
}
std::string format_flops(Flops flops) { return in_units(flops.value(), flop_units); }

std::string format_seconds(Seconds seconds) {
  const double value = seconds.value();
  if (!(std::fabs(value) >= 99.95)) return in_units(value, short_times);
  const double minutes = std::round(std::fabs(value) / 60);
  const std::string sign = value < 0 ? "-" : "";
  const auto pair = [&](double whole, const char* large, double rest, const char* small) {
    return sign + fixed(whole, 0) + " " + large + (rest < 10 ? " 0" : " ") + fixed(rest, 0) + " " +
           small;
  };
  if (std::round(std::fabs(value)) < 3600) {
    const double whole = std::round(std::fabs(value));
    return pair(std::floor(whole / 60), "min", std::fmod(whole, 60), "s");
  }
  if (minutes < 2880) return pair(std::floor(minutes / 60), "h", std::fmod(minutes, 60), "min");
  const double hours = std::round(std::fabs(value) / 3600);
  return pair(std::floor(hours / 24), "d", std::fmod(hours, 24), "h");
}

std::string format_percent(double share) { return fixed(share * 100, 1) + " %"; }

std::string format_number(double number) {
  const double size = std::abs(number);
  if (!(size < 1e15)) return format_exact(number);
  if (size >= 99.95 || size == 0) return format_count(std::llround(number));
  int digits = size >= 9.995 ? 1 : 2;
  for (double below = 0.9995; size < below && digits < 12; below /= 10) ++digits;
  return fixed(number, digits);
}

std::string format_exact(double number) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), result.ptr};
}

Parsed<Bytes> parse_bytes(std::string_view text) {
  const Parsed<Amount> amount = parse_amount(text, all_byte_units);
  if (!amount.value) return {{}, amount.problem};
  const auto [number, factor] = *amount.value;
  // Whole numbers stay exact over all 63 bits; a double would not.
  std::int64_t exact = 0;
  if (const auto whole = parse_integer(number)) {
    if (__builtin_mul_overflow(*whole, static_cast<std::int64_t>(factor), &exact)) {
      return {{}, "is larger than 8 EiB"};
    }
    return {Bytes(exact), ""};
  }
  const std::optional<double> real = parse_real(number);
  const double value = real ? std::round(*real * factor) : 0;
  if (!real || !(value < 0x1p63)) return {{}, "is larger than 8 EiB"};
  return {Bytes(static_cast<std::int64_t>(value)), ""};
}

Parsed<BytesPerSecond> parse_bytes_per_second(std::string_view text) {
  return parse_quantity<BytesPerSecond>(text, all_byte_rate_units);
}
Parsed<FlopsPerSecond> parse_flops_per_second(std::string_view text) {
  return parse_quantity<FlopsPerSecond>(text, flop_rate_units);
}
Parsed<Seconds> parse_seconds(std::string_view text) {
  return parse_quantity<Seconds>(text, all_times);
}

std::string byte_units() { return names(all_byte_units); }
std::string bytes_per_second_units() { return names(all_byte_rate_units); }
std::string flops_per_second_units() { return names(flop_rate_units); }
std::string second_units() { return names(all_times); }

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text.front() == '-') return {};
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  if (text.empty() || number_length(text) != text.size()) return {};
  if (text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace shardfit
