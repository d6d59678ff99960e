#pragma once
// What the benchmarks found, ready for the writers.

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/facts.h"

namespace shardfit::calibrate {

enum class Unit : std::uint8_t { bytes, seconds, bytes_per_second, flops_per_second, share, count };
/// "bytes", "seconds", ...: as JSON keys end.
const char* unit_name(Unit unit);

/// Numbers of one quantity, summed up.
struct Summary {
  double median = 0;
  double spread = 0;         // half of the distance between the quartiles, of the median
  std::int64_t samples = 0;  // that count
  std::int64_t dropped = 0;  // taken while the device was throttled
  std::string stopped;       // why there are no more: "steady", "time", "most", "once"
};

/// One number.
struct Reading {
  std::string benchmark;  // row of the table
  std::string name;       // what of it: "read 1.00 GiB cold"
  Unit unit = Unit::seconds;
  Summary value;
  std::string method;  // one phrase
  double work = 0;     // bytes moved or flops done in one sample; 0: neither
};

/// A benchmark, or a part of one, that did not run, and why.
struct Waived {
  std::string benchmark;
  std::string reason;
};

/// A benchmark that failed: the CUDA call and its error.
struct Failed {
  std::string benchmark;
  std::string error;
};

struct Findings {
  Machine machine;
  int device = 0;
  std::vector<Reading> readings;
  std::vector<Waived> waived;
  std::vector<Failed> failed;

  const Reading* find(const std::string& benchmark, const std::string& name) const;
};

/// A reading of a single observation.
Reading once(std::string benchmark, std::string name, Unit unit, double value, std::string method);

/// The value in people's words: "4.02 TB/s", "512 B", "3.20 us".
std::string value_words(Unit unit, double value);

}  // namespace shardfit::calibrate
