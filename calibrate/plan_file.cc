#include "calibrate/plan_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "spec/reader.h"

namespace shardfit::calibrate {
namespace {

using spec::MapView;
using spec::Node;
using spec::UnknownKeys;

constexpr Bytes largest_file{1LL << 30};

PlannedGpu read_gpu(const Node& node, Diagnostics& faults) {
  MapView map(node, "a GPU of the plan", faults, UnknownKeys::kept);
  PlannedGpu gpu;
  const auto bytes = [&](const char* key) { return map.require_integer(key).value; };
  gpu.index = static_cast<int>(map.require_integer("index", {0, 65'535}).value);
  gpu.rank = static_cast<int>(map.require_integer("rank", {0, 65'535}).value);
  gpu.usable = bytes("usable_bytes");
  gpu.context = bytes("context_bytes");
  gpu.allocated = bytes("allocated_bytes");
  gpu.reserved = bytes("reserved_bytes");
  gpu.device = bytes("device_bytes");
  if (const Node* phases = map.require_list("phases")) {
    for (const Node& child : phases->children) {
      MapView phase(child, "a phase of the plan", faults, UnknownKeys::kept);
      gpu.phases.push_back({phase.require_string("name").value,
                            phase.require_integer("allocated_bytes").value,
                            phase.require_integer("reserved_bytes").value});
    }
  }
  return gpu;
}

PlannedOption read_option(const Node& node, Diagnostics& faults) {
  MapView map(node, "an option of the plan", faults, UnknownKeys::kept);
  PlannedOption option;
  option.name = map.require_string("name").value;
  option.device = map.require_string("device").value;
  option.parallel = map.require_string("parallel").value;
  option.verdict = map.require_string("verdict").value;
  if (const auto seconds = map.real("step_seconds")) option.step_seconds = seconds->value;
  if (const Node* exchange = map.map("exchange")) {
    MapView of(*exchange, "'exchange' of the plan", faults, UnknownKeys::kept);
    if (const auto seconds = of.real("seconds")) option.exchange_seconds = seconds->value;
  }
  if (const Node* job = map.require_map("job")) {
    MapView words(*job, "'job' of the plan", faults, UnknownKeys::kept);
    if (const auto text = words.string("allocator")) {
      option.allocator = text->value;
      try {
        option.settings = run::parse_allocator_settings(text->value);
      } catch (const run::SettingsError& error) {
        faults.error(text->where, error.what());
      }
    }
  }
  if (const Node* gpus = map.require_list("gpus")) {
    for (const Node& gpu : gpus->children) option.gpus.push_back(read_gpu(gpu, faults));
  }
  return option;
}

/// The option asked for, by its place in the list.
std::size_t choose(const std::vector<PlannedOption>& options, std::string name,
                   const std::string& recommended, const Location& where) {
  std::vector<std::string> names;
  for (const PlannedOption& option : options) names.push_back(option.name);
  if (name.empty()) name = recommended;
  if (name.empty() && options.size() == 1) return 0;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  if (name.empty()) {
    throw InputError(where, "the plan recommends no option",
                     {"give one with --option: " + join(names)});
  }
  throw InputError(where, "the plan has no option " + shardfit::quoted(name), suggest(name, names));
}

void read_programs(PlannedOption& option, const std::string& folder) {
  for (PlannedGpu& gpu : option.gpus) {
    gpu.program_path =
        (std::filesystem::path(folder) / run::program_file_name(option.name, gpu.rank)).string();
    std::error_code missing;
    if (!std::filesystem::exists(gpu.program_path, missing)) {
      throw InputError(whole_file(gpu.program_path),
                       "the program of rank " + std::to_string(gpu.rank) + " is missing",
                       {"shardfit plan ... --json --export-program " + folder + " writes it"});
    }
    gpu.program = run::read_program(spec::read_source(gpu.program_path, largest_file));
    if (gpu.program.option != option.name) {
      throw InputError(whole_file(gpu.program_path),
                       "it is a program of option " + shardfit::quoted(gpu.program.option) +
                           ", not of " + shardfit::quoted(option.name));
    }
  }
}

}  // namespace

PlannedOption read_planned(const std::string& plan_path, const std::string& name,
                           const std::string& folder) {
  Diagnostics faults;
  const Node root = spec::read_file(plan_path, faults);
  MapView map(root, "the plan", faults, UnknownKeys::kept);
  std::vector<PlannedOption> options;
  if (const Node* list = map.require_list("options")) {
    for (const Node& node : list->children) options.push_back(read_option(node, faults));
  }
  std::string recommended;
  if (const Node* node = map.map("recommendation")) {
    MapView of(*node, "'recommendation' of the plan", faults, UnknownKeys::kept);
    if (const auto text = of.string("option")) recommended = text->value;
  }
  faults.throw_if_any();
  if (options.empty()) throw InputError(root.where, "the plan has no options");
  PlannedOption option = std::move(options[choose(options, name, recommended, root.where)]);
  if (option.gpus.empty()) throw InputError(root.where, "the option has no GPUs");
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
