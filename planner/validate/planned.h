#pragma once
// A plan as `shardfit plan --json` wrote it, as far as it is compared with what really ran.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run/allocator_settings.h"
#include "run/run.h"

namespace shardfit::validate {

struct PlannedPhase {
  std::string name;  // "steady_step.backward"
  std::int64_t allocated = 0, reserved = 0;
};

struct PlannedGpu {
  int index = 0, rank = 0;
  std::int64_t usable = 0, context = 0;
  std::int64_t allocated = 0, reserved = 0, device = 0;
  std::optional<run::ByCategory> requested_by;  // at the peak
  std::vector<PlannedPhase> phases;
};

struct PlannedOption {
  std::string name, device, parallel, verdict;
  std::string allocator;  // settings string
  run::AllocatorSettings settings;
  std::optional<double> step_seconds, exchange_seconds;
  std::vector<PlannedGpu> gpus;  // at least one
};

/// Version of plan.json that is read.
inline constexpr const char* plan_version = "1";

/// The option named, or the recommended one, or the only one where `name` is "". Throws InputError:
/// no plan, no such option.
PlannedOption read_planned_option(const std::string& plan_path, const std::string& name);

/// Relative differences within which a prediction counts as right.
inline constexpr double allocated_tolerance = 0.005, reserved_tolerance = 0.02,
                        device_tolerance = 0.02;

}  // namespace shardfit::validate
