#pragma once
// Times of one kind over several sizes, and what they say of latency and bandwidth.

#include <map>
#include <string>
#include <vector>

#include "calibrate/fit.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

class Series {
 public:
  explicit Series(Session& session) : session_(session) {}
  /// Notes the seconds of a case as a point of `kind`.
  void add(const std::string& kind, const Case& c, const Summary& seconds,
           const std::string& method);
  /// Latency and bandwidth of each kind as readings "KIND latency", "KIND bandwidth" and the worst
  /// residual; `work` says what the bandwidth counts. A kind that gives no fit is noted.
  void fit(const std::string& work);

 private:
  Session& session_;
  std::vector<std::string> kinds_;  // in the order they came
  std::map<std::string, std::vector<Point>> points_;
};

}  // namespace shardfit::calibrate
