#include "validate/planned.h"

#include <algorithm>

#include "spec/reader.h"

namespace shardfit::validate {
namespace {

using spec::MapView;
using spec::Node;
using spec::UnknownKeys;

PlannedGpu read_gpu(const Node& node, Diagnostics& faults) {
  MapView map(node, "a GPU of the plan", faults, UnknownKeys::kept);
  PlannedGpu gpu;
  const auto bytes = [&](const char* key) {
    return map.require_integer(key, {0, std::int64_t{1} << 60}).value;
  };
  gpu.index = static_cast<int>(map.require_integer("index", {0, 65'535}).value);
  gpu.rank = static_cast<int>(map.require_integer("rank", {0, 65'535}).value);
  gpu.usable = bytes("usable_bytes");
  gpu.context = bytes("context_bytes");
  gpu.allocated = bytes("allocated_bytes");
  gpu.reserved = bytes("reserved_bytes");
  gpu.device = bytes("device_bytes");
  if (const Node* categories = map.map("requested_categories")) {
    MapView of(*categories, "'requested_categories' of the plan", faults, UnknownKeys::kept);
    gpu.requested_by.emplace();
    for (int c = 0; c < category_count; ++c) {
      (*gpu.requested_by)[static_cast<std::size_t>(c)] =
          of.require_integer(category_name(static_cast<Category>(c))).value;
    }
  }
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

}  // namespace

PlannedOption read_planned_option(const std::string& plan_path, const std::string& name) {
  Diagnostics faults;
  const Node root = spec::read_file(plan_path, faults);
  MapView map(root, "the plan", faults, UnknownKeys::kept);
  // Plans written by hand may leave it out.
  if (const auto version = map.string("version")) {
    if (version->value != plan_version) {
      faults.error(version->where, "the plan is of version " + shardfit::quoted(version->value),
                   {std::string("expected '") + plan_version +
                    "'; write it anew with shardfit plan ... --json"});
      faults.throw_if_any();
    }
  }
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
  return option;
}

}  // namespace shardfit::validate
