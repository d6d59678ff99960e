#pragma once
// Quantities as people read and write them. The only place that rounds.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"

namespace shardfit {

/// Memory in powers of two with one unit fit for its size: "512 B", "1.00 MiB", "79.6 GiB",
/// "139.8 GiB", "-3.25 GiB". Three significant digits and at least one decimal.
std::string format_bytes(Bytes bytes);
/// Every byte, with separators: "85,489,483,776 B".
std::string format_bytes_exact(Bytes bytes);
/// A whole number with separators: "8,030,261,248".
std::string format_count(std::int64_t count);
/// A large count in short: "8.03 B" (billion), "135 M", "512".
std::string format_count_short(std::int64_t count);
/// Powers of ten: "4.80 TB/s", "989 TFLOP/s", "6.02 PFLOP".
std::string format_rate(BytesPerSecond rate);
std::string format_rate(FlopsPerSecond rate);
std::string format_flops(Flops flops);
/// "12.0 us", "1.24 ms", "3.50 s", "2 h 05 min", "3 d 04 h".
std::string format_seconds(Seconds seconds);
/// A share as a percentage with one decimal: 0.123 -> "12.3 %".
std::string format_percent(double share);
/// Three significant digits, none behind the point from 100 on: "0.0123", "1.63", "12.3", "4,567".
std::string format_number(double number);
/// The shortest decimal digits that read back as the same number: "0.1", "1e-05", "3".
std::string format_exact(double number);

/// What a text says, or why it says nothing: exactly one of the two is set.
template <class T>
struct Parsed {
  std::optional<T> value;
  std::string problem;  // "has no unit", "unit 'Gb' is unknown", "is larger than 8 EiB"
};

/// "80 GiB", "1.5TB", "512 B"; the unit is required. Powers of two: KiB .. PiB; of ten: kB .. PB.
/// Fractions of a byte are rounded to the nearest byte.
Parsed<Bytes> parse_bytes(std::string_view text);
/// "900 GB/s", "4.8 TB/s", "64 GiB/s".
Parsed<BytesPerSecond> parse_bytes_per_second(std::string_view text);
/// "989 TFLOP/s"; "TFLOPS" is read as the same.
Parsed<FlopsPerSecond> parse_flops_per_second(std::string_view text);
/// "20 us", "1.5 ms", "3 s", "10 min", "2 h", "3 d".
Parsed<Seconds> parse_seconds(std::string_view text);

/// Units each parser takes, for messages: "B, kB, ...".
std::string byte_units();
std::string bytes_per_second_units();
std::string flops_per_second_units();
std::string second_units();

/// A whole decimal number (an optional sign, digits) in 64 bits; nothing else is taken.
std::optional<std::int64_t> parse_integer(std::string_view text);
/// A finite decimal number; nothing else is taken (no hexadecimal, no "inf").
std::optional<double> parse_real(std::string_view text);

}  // namespace shardfit
