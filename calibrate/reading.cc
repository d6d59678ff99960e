#include "calibrate/reading.h"

#include <cmath>

#include "base/format.h"

namespace shardfit::calibrate {

const char* unit_name(Unit unit) {
  constexpr const char* names[] = {"bytes", "seconds", "bytes_per_second", "flops_per_second",
                                   "share", "count"};
  return names[static_cast<int>(unit)];
}

const Reading* Findings::find(const std::string& benchmark, const std::string& name) const {
  for (const Reading& reading : readings) {
    if (reading.benchmark == benchmark && reading.name == name) return &reading;
  }
  return nullptr;
}

Reading once(std::string benchmark, std::string name, Unit unit, double value, std::string method) {
  Reading reading;
  reading.benchmark = std::move(benchmark);
  reading.name = std::move(name);
  reading.unit = unit;
  reading.value = {value, 0, 1, 0, "once"};
  reading.method = std::move(method);
  return reading;
}

std::string value_words(Unit unit, double value) {
  switch (unit) {
    case Unit::bytes:
      return format_bytes(Bytes(std::llround(value)));
    case Unit::seconds:
      return format_seconds(Seconds(value));
    case Unit::bytes_per_second:
      return format_rate(BytesPerSecond(value));
    case Unit::flops_per_second:
      return format_rate(FlopsPerSecond(value));
    case Unit::share:
      return format_percent(value);
    case Unit::count:
      break;
  }
  return format_count(std::llround(value));
}

std::string software_words(const Machine& machine) {
  std::string words;
  if (!machine.runtime.empty()) words = "CUDA " + machine.runtime;
  if (!machine.driver.empty()) words += (words.empty() ? "" : ", ") + ("driver " + machine.driver);
  return words;
}

}  // namespace shardfit::calibrate
