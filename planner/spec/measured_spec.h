#pragma once
// What calibrate measured on one machine, beside the numbers that predictions use directly: a
// device file holds it under 'measured'.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostic.h"
#include "base/units.h"
#include "spec/node.h"

namespace shardfit::spec {

/// A quantity by its name, with how often and how evenly it was seen.
struct MeasuredLine {
  std::string name;  // "pinned to device", "all_reduce all 2"
  Seconds latency;
  BytesPerSecond bandwidth;
  double residual = 0;  // root mean square of the fit, relative
  std::int64_t points = 0;
};

/// Matrix products of one dtype and shape class.
struct MeasuredProducts {
  std::string rate;                     // "bf16"
  std::string shape;                    // "tiny", "narrow", "medium", "large"
  double share = 0, low = 0, high = 0;  // of the device's peak rate
  std::int64_t shapes = 0;
};

struct MeasuredSpec {
  std::string source;             // program, driver, date
  std::optional<Bytes> context;   // of a process that has loaded next to nothing
  std::optional<Seconds> launch;  // a kernel in a row of launches
  std::vector<MeasuredLine> lines;
  std::vector<MeasuredProducts> products;
};

MeasuredSpec read_measured(const Node& node, Diagnostics& faults);

}  // namespace shardfit::spec
