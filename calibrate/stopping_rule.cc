#include "calibrate/stopping_rule.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace shardfit::calibrate {

double quantile(const std::vector<double>& ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  return std::lerp(ascending[below], ascending[above], place - static_cast<double>(below));
}

void StoppingRule::add(double value, bool throttled) {
  if (!std::isfinite(value) || value < 0) {
    throw std::invalid_argument("a sample is negative or no number");
  }
  if (throttled) {
    ++dropped_;
    return;
  }
  values_.insert(std::upper_bound(values_.begin(), values_.end(), value), value);
}

double StoppingRule::relative_error() const {
  const double median = quantile(values_, 0.5);
  if (median == 0) return quantile(values_, 0.75) == 0 ? 0 : HUGE_VAL;
  const double range = quantile(values_, 0.75) - quantile(values_, 0.25);
  const double deviation = range / 1.349;
  return 1.2533 * deviation / std::sqrt(static_cast<double>(values_.size())) / median;
}

bool StoppingRule::done(double elapsed) {
  const auto counted = static_cast<std::int64_t>(values_.size());
  if (counted >= limits_.least && relative_error() <= limits_.relative_error) {
    why_ = "steady";
  } else if (counted + dropped_ >= limits_.most) {
    why_ = "most";
  } else if (elapsed >= limits_.seconds && counted + dropped_ > 0) {
    why_ = "time";
  } else {
    return false;
  }
  return true;
}

Summary StoppingRule::summary() const {
  Summary summary;
  summary.samples = static_cast<std::int64_t>(values_.size());
  summary.dropped = dropped_;
  summary.stopped = why_;
  if (values_.empty()) return summary;
  summary.median = quantile(values_, 0.5);
  if (summary.median > 0) {
    summary.spread = (quantile(values_, 0.75) - quantile(values_, 0.25)) / 2 / summary.median;
  }
  return summary;
}

}  // namespace shardfit::calibrate
