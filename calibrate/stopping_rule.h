#pragma once
// When a series of samples says enough.

#include <cstdint>
#include <vector>

#include "calibrate/reading.h"

namespace shardfit::calibrate {

struct StoppingLimits {
  std::int64_t least = 7;        // samples that count, before anything else is asked
  std::int64_t most = 200;       // samples taken, dropped ones too
  double relative_error = 0.01;  // of the median, by which the series is steady
  double seconds = 0.5;          // spent on the series
};

/// The series is steady when the standard error of its median, as the quartiles give it
/// (1.2533 * IQR / 1.349 / sqrt(n), normal errors; Kendall & Stuart vol. 1, 10.11), is at most
/// `relative_error` of the median. Otherwise it ends when its time is used up or the most samples
/// are taken. Samples of a throttled device are counted and do not count.
class StoppingRule {
 public:
  explicit StoppingRule(const StoppingLimits& limits) : limits_(limits) {}

  /// `value` must be finite and not negative; throws std::invalid_argument.
  void add(double value, bool throttled = false);
  /// Whether to stop after `elapsed` seconds; why() then says why.
  bool done(double elapsed);
  const char* why() const { return why_; }
  Summary summary() const;

 private:
  double relative_error() const;

  StoppingLimits limits_;
  std::vector<double> values_;  // ascending
  std::int64_t dropped_ = 0;
  const char* why_ = "";
};

/// The value below which `share` of an ascending series lies, between neighbours linearly
/// (Hyndman & Fan, type 7). The series must not be empty.
double quantile(const std::vector<double>& ascending, double share);

}  // namespace shardfit::calibrate
