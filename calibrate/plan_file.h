#pragma once
// A plan (plan.json of `shardfit plan --json`) with the programs of its ranks (--export-program),
// as far as confirm, smoke and compare need them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/benchmarks.h"
#include "run/program_file.h"
#include "validate/planned.h"

namespace shardfit::calibrate {

struct PlannedGpu : validate::PlannedGpu {
  std::string program_path;
  run::ProgramFile program;
};

/// With the programs; its own `gpus` hide those without.
struct PlannedOption : validate::PlannedOption {
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
