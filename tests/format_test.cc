#include "base/format.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>

using namespace shardfit;

TEST_CASE("memory prints in powers of two with its unit") {
  CHECK(format_bytes(Bytes(0)) == "0 B");
  CHECK(format_bytes(Bytes(1023)) == "1023 B");
  CHECK(format_bytes(Bytes(1024)) == "1.00 KiB");
  CHECK(format_bytes(Bytes(85'489'483'776)) == "79.6 GiB");
  CHECK(format_bytes(Bytes(150'109'880'320)) == "139.8 GiB");
  CHECK(format_bytes(Bytes((1LL << 30) - 1)) == "1.00 GiB");
  CHECK(format_bytes(Bytes(-(1LL << 20) * 3)) == "-3.00 MiB");
  CHECK(format_bytes(Bytes(std::numeric_limits<std::int64_t>::max())) == "8192.0 PiB");
  CHECK(format_bytes(Bytes(std::numeric_limits<std::int64_t>::min())) == "-8192.0 PiB");
  CHECK(format_bytes_exact(Bytes(85'489'483'776)) == "85,489,483,776 B");
}

TEST_CASE("counts have separators, large ones a short form") {
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1000) == "1,000");
  CHECK(format_count(-123'456) == "-123,456");
  CHECK(format_count(8'030'261'248) == "8,030,261,248");
  CHECK(format_count(std::numeric_limits<std::int64_t>::min()) == "-9,223,372,036,854,775,808");
  CHECK(format_count_short(8'030'261'248) == "8.03 B");
  CHECK(format_count_short(134'515'008) == "135 M");
  CHECK(format_count_short(512) == "512");
}

TEST_CASE("rates, flops and times print in powers of ten") {
  CHECK(format_rate(BytesPerSecond(4.8e12)) == "4.80 TB/s");
  CHECK(format_rate(BytesPerSecond(31e9)) == "31.0 GB/s");
  CHECK(format_rate(FlopsPerSecond(989e12)) == "989 TFLOP/s");
  CHECK(format_flops(Flops(6.02e15)) == "6.02 PFLOP");
  CHECK(format_seconds(Seconds(12e-6)) == "12.0 us");
  CHECK(format_seconds(Seconds(1.2375e-3)) == "1.24 ms");
  CHECK(format_seconds(Seconds(3.5)) == "3.50 s");
  CHECK(format_seconds(Seconds(125)) == "2 min 05 s");
  CHECK(format_seconds(Seconds(7500)) == "2 h 05 min");
  CHECK(format_seconds(Seconds(3599.9)) == "1 h 00 min");
  CHECK(format_seconds(Seconds(76 * 3600.0)) == "3 d 04 h");
  CHECK(format_percent(0.1234) == "12.3 %");
  CHECK(format_exact(0.1) == "0.1");
}

TEST_CASE("byte quantities are read with their unit, exactly") {
  CHECK(*parse_bytes("80 GiB").value == Bytes(80LL << 30));
  CHECK(*parse_bytes("1.5TB").value == Bytes(1'500'000'000'000));
  CHECK(*parse_bytes(" 512 B ").value == Bytes(512));
  CHECK(*parse_bytes("0.5 KiB").value == Bytes(512));
  CHECK(*parse_bytes("1e3 kB").value == Bytes(1'000'000));
  CHECK(*parse_bytes("9223372036854775807 B").value ==
        Bytes(std::numeric_limits<std::int64_t>::max()));
}

TEST_CASE("what is not a quantity says why") {
  CHECK(parse_bytes("80").problem == "has no unit");
  CHECK(parse_bytes("").problem == "is empty");
  CHECK(parse_bytes("GiB").problem == "does not start with a number");
  CHECK(parse_bytes("-1 GiB").problem == "is negative");
  CHECK(parse_bytes("80 Gb").problem == "has the unknown unit 'Gb'");
  CHECK(parse_bytes("80 GiB/s").problem == "has the unknown unit 'GiB/s'");
  CHECK(parse_bytes("1e10 PiB").problem == "is larger than 8 EiB");
  CHECK(parse_bytes("9223372036854775808 B").problem == "is larger than 8 EiB");
  CHECK(parse_bytes("1e999 B").problem == "is larger than 8 EiB");
  CHECK(parse_bytes("nan GiB").problem == "does not start with a number");
  CHECK(parse_seconds("1e308 d").problem == "is too large");
  CHECK(parse_bytes_per_second("900 GB").problem == "has the unknown unit 'GB'");
}

TEST_CASE("rates and times are read with their unit") {
  CHECK(parse_bytes_per_second("900 GB/s").value->value() == 900e9);
  CHECK(parse_bytes_per_second("1 GiB/s").value->value() == 0x1p30);
  CHECK(parse_flops_per_second("989 TFLOP/s").value->value() == 989e12);
  CHECK(parse_flops_per_second("989TFLOPS").value->value() == 989e12);
  CHECK(parse_seconds("20 us").value->value() == 20 * 1e-6);
  CHECK(parse_seconds("3 d").value->value() == 259200);
}

TEST_CASE("numbers are taken whole or not at all") {
  CHECK(*parse_integer("-12") == -12);
  CHECK(*parse_integer("+12") == 12);
  for (const char* bad :
       {"", "+", "-", "+-1", "1.0", "1e3", "0x10", "1_000", " 1", "9223372036854775808", "12a"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_integer(bad));
  }
  CHECK(*parse_real("+1.5e-3") == 1.5e-3);
  CHECK(*parse_real(".5") == 0.5);
  for (const char* bad : {"", ".", "e5", "1e", "nan", "inf", "0x1p3", "1.5x", "1e999", "--1"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_real(bad));
  }
}

TEST_CASE("printed exact bytes read back as the same bytes") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    const auto count = static_cast<std::int64_t>(random() >> (1 + random() % 62));
    CAPTURE(count);
    CHECK(*parse_bytes(std::to_string(count) + " B").value == Bytes(count));
  }
}
