#include "calibrate/plan_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/format.h"
#include "run/run.h"
#include "spec/reader.h"

namespace shardfit::calibrate {
namespace {

constexpr Bytes largest_file{1LL << 30};

/// Option names say little: a program of an older plan has other peaks.
void check_peaks(const PlannedGpu& gpu, const run::AllocatorSettings& settings) {
  run::RunLimits limits;
  limits.settings = settings;
  const run::RunResult own = run::run_program(gpu.program.program, limits);
  if (own.allocated_peak == gpu.allocated && own.reserved_peak == gpu.reserved) return;
  throw InputError(whole_file(gpu.program_path),
                   "it is the program of another plan: it reaches " +
                       format_bytes_exact(Bytes(own.allocated_peak)) + " allocated and " +
                       format_bytes_exact(Bytes(own.reserved_peak)) + " reserved, the plan has " +
                       format_bytes_exact(Bytes(gpu.allocated)) + " and " +
                       format_bytes_exact(Bytes(gpu.reserved)),
                   {"shardfit plan ... --json --export-program writes both anew"});
}

void read_programs(PlannedOption& option, const std::string& folder) {
  for (PlannedGpu& gpu : option.gpus) {
    gpu.program_path =
        (std::filesystem::path(folder) / run::program_file_name(option.name, gpu.rank)).string();
    std::error_code missing;
    if (!std::filesystem::exists(gpu.program_path, missing)) {
      throw InputError(whole_file(gpu.program_path),
                       "the program of rank " + std::to_string(gpu.rank) + " is missing",
                       {"shardfit plan ... --json --export-program " + folder + " writes it",
                        "--programs FOLDER says where it is, if not beside the plan"});
    }
    gpu.program = run::read_program(spec::read_source(gpu.program_path, largest_file));
    if (gpu.program.option != option.name) {
      throw InputError(whole_file(gpu.program_path),
                       "it is a program of option " + shardfit::quoted(gpu.program.option) +
                           ", not of " + shardfit::quoted(option.name));
    }
    check_peaks(gpu, option.settings);
  }
}

}  // namespace

PlannedOption read_planned(const std::string& plan_path, const std::string& name,
                           const std::string& folder) {
  PlannedOption option;
  static_cast<validate::PlannedOption&>(option) = validate::read_planned_option(plan_path, name);
  for (const validate::PlannedGpu& gpu : option.validate::PlannedOption::gpus) {
    PlannedGpu own;
    static_cast<validate::PlannedGpu&>(own) = gpu;
    option.gpus.push_back(std::move(own));
  }
  const std::string beside = std::filesystem::path(plan_path).parent_path().string();
  read_programs(option, folder.empty() ? (beside.empty() ? "." : beside) : folder);
  return option;
}

Work work_of(const Compute& compute) {
  if (compute.m <= 0 || compute.n <= 0 || compute.k <= 0) return Work::memory;
  return std::strstr(compute.kind, "attention") ? Work::attention : Work::product;
}

std::string rate_of(DType dtype) {
  if (dtype == DType::bf16) return "bf16";
  return dtype == DType::f16 ? "fp16" : "fp32";
}

std::vector<ProductShape> products_of(const PlannedOption& option) {
  std::vector<ProductShape> products;
  std::set<ProductShape> seen;
  for (const PlannedGpu& gpu : option.gpus) {
    for (const Compute& c : gpu.program.program.computes) {
      if (work_of(c) != Work::product) continue;
      const ProductShape shape{rate_of(c.dtype), c.m, c.n, c.k,
                               std::max<std::int64_t>(1, c.groups)};
      if (seen.insert(shape).second) products.push_back(shape);
    }
  }
  return products;
}

}  // namespace shardfit::calibrate
