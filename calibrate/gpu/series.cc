#include "calibrate/gpu/series.h"

#include <stdexcept>

namespace shardfit::calibrate {

void Series::add(const std::string& kind, const Case& c, const Summary& seconds,
                 const std::string& method) {
  session_.add(c.name, Unit::seconds, seconds, method, c.work);
  if (seconds.samples == 0) return;  // all throttled
  if (points_.find(kind) == points_.end()) kinds_.push_back(kind);
  points_[kind].push_back({c.work, seconds.median});
}

void Series::fit(const std::string& work) {
  for (const std::string& kind : kinds_) {
    const std::vector<Point>& points = points_[kind];
    try {
      const LatencyRate line = fit_latency_rate(points);
      Summary of;
      of.samples = line.points;
      of.spread = line.typical_residual;
      of.stopped = "fit";
      const auto add = [&](const char* what, Unit unit, double value) {
        of.median = value;
        session_.add(kind + " " + what, unit, of,
                     "least squares on relative errors over sizes; spread: root mean square "
                     "residual; " +
                         work);
      };
      add("latency", Unit::seconds, line.latency);
      add("bandwidth", Unit::bytes_per_second, line.rate);
      add("worst residual", Unit::share, line.worst_residual);
    } catch (const std::invalid_argument& problem) {
      session_.waive(kind + ": no fit, " + problem.what());
    }
  }
}

}  // namespace shardfit::calibrate
