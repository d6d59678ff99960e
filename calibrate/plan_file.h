#pragma once
// A plan (plan.json of `shardfit plan --json`) with the programs of its ranks (--export-program),
// as far as confirm, smoke and compare need them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/benchmarks.h"
#include "run/allocator_settings.h"
#include "run/program_file.h"

namespace shardfit::calibrate {

struct PlannedPhase {
  std::string name;  // "steady_step.backward"
  std::int64_t allocated = 0, reserved = 0;
};

struct PlannedGpu {
  int index = 0, rank = 0;
  std::int64_t usable = 0, context = 0;
  std::int64_t allocated = 0, reserved = 0, device = 0;
  std::vector<PlannedPhase> phases;
  std::string program_path;
  run::ProgramFile program;
};

struct PlannedOption {
  std::string name, device, parallel, verdict;
  std::string allocator;  // settings string
  run::AllocatorSettings settings;
  std::optional<double> step_seconds, exchange_seconds;
  std::vector<PlannedGpu> gpus;
};

/// The option named, or the recommended one, or the only one where `name` is "". Programs are read
/// from `folder`, or from beside the plan where it is "". Throws InputError: no plan, no such
/// option, a program that is missing (with the command that writes it) or belongs to another
/// option.
PlannedOption read_planned(const std::string& plan_path, const std::string& name,
                           const std::string& folder);

/// The distinct matrix products of the programs, in order of first use, attention left out.
std::vector<ProductShape> products_of(const PlannedOption& option);

/// Whether a compute is a matrix product, attention, or neither (then memory bounds it).
enum class Work { product, attention, memory };
Work work_of(const Compute& compute);
/// "bf16"; products of integers count as fp32.
std::string rate_of(DType dtype);

}  // namespace shardfit::calibrate
