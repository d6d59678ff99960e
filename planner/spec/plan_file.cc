// Layers: plan files in order, then an option's own keys, then the command line. Each layer wins
// over those before it.

#include <algorithm>
#include <filesystem>
#include <map>

#include "spec/data_directory.h"
#include "spec/graph_spec.h"
#include "spec/job_spec.h"
#include "spec/reader.h"

namespace shardfit::spec {
namespace {

/// Keys that concern the whole comparison, not one option's job.
bool is_plan_key(std::string_view key) {
  return key == "on" || key == "device-profile" || key == "hypothesis" || key == "prices" ||
         key == "objective" || key == "budget" || key == "imbalance";
}

std::string value_text(const Node& node) {
  if (node.kind != Kind::list && node.kind != Kind::map) return node.text;
  return describe(node);
}

// Far more than any plan has; what follows compares every key with every other.
constexpr std::size_t most_keys = 200;
constexpr std::size_t most_options = 1000;

/// Throws, with what was found until then, where a map or list is too long to be meant.
void bound(const Node& node, std::string_view what, std::size_t most, Diagnostics& faults) {
  if (node.children.size() <= most) return;
  faults.error(node.where, std::string(what) + " has " + std::to_string(node.children.size()) +
                               " entries, more than " + std::to_string(most));
  faults.throw_if_any();
}

/// "micro_batch" is read as "micro-batch".
Node with_dashes(Node map, Diagnostics& faults) {
  for (std::size_t i = 0; i < map.children.size(); ++i) {
    Node& child = map.children[i];
    const std::string written = child.key;
    std::replace(child.key.begin(), child.key.end(), '_', '-');
    for (std::size_t j = 0; written != child.key && j < map.children.size(); ++j) {
      if (j != i && map.children[j].key == child.key) {
        faults.error(child.key_where, "duplicate key " + shardfit::quoted(written),
                     {"it is another spelling of " + shardfit::quoted(child.key)});
      }
    }
  }
  return map;
}

Node empty_map(Location where) {
  Node map;
  map.kind = Kind::map;
  map.where = std::move(where);
  return map;
}

/// Puts the keys of `over` in place of those of `base`.
void lay_over(Node& base, const Node& over, std::vector<Override>* overrides) {
  for (const Node& child : over.children) {
    const auto same = std::find_if(base.children.begin(), base.children.end(),
                                   [&](const Node& node) { return node.key == child.key; });
    if (same == base.children.end()) {
      base.children.push_back(child);
      continue;
    }
    if (overrides) {
      overrides->push_back(
          {child.key, value_text(child), value_text(*same), child.where, same->where});
    }
    *same = child;
  }
}

/// "h200, 2xb200": the devices of a list of options.
std::string join_on(const std::vector<Node>& options) {
  std::vector<std::string> names;
  for (const Node& option : options) {
    const Node* on = option.child("on");
    if (on) names.push_back(value_text(*on));
  }
  return join(names);
}

/// Files of other programs that are no plan, by a key that only they have.
struct OtherFile {
  const char* key;
  const char* what;
  const char* instead;
};
constexpr OtherFile other_files[] = {
    {"zero-optimization", "a configuration of DeepSpeed",
     "give its words as options: --framework deepspeed --parallel zero1, zero2 or zero3, "
     "--precision, --micro-batch, --accumulation; the model with --model"},
    {"distributed-type", "a configuration of accelerate",
     "give its words as options: --parallel ddp or fsdp2, --precision, and COUNTx before the "
     "device of --on; the model with --model"},
    {"base-model", "a configuration of axolotl",
     "give its words as options: --task, --precision, --micro-batch, --accumulation, --sequence; "
     "the model's config.json with --model"},
    {"model-name-or-path", "a configuration of LLaMA-Factory",
     "give its words as options: --task, --precision, --micro-batch, --accumulation, --sequence; "
     "the model's config.json with --model"},
    {"weight-map", "an index of safetensors", "give the config.json beside it"},
};

void refuse_other_files(const Node& root) {
  if (root.child("architectures")) return;  // a model's config.json, whatever else it says
  for (const OtherFile& other : other_files) {
    const Node* key = root.child(other.key);
    if (!key) continue;
    throw InputError(key->key_where,
                     std::string("this file is ") + other.what + ", which is not read",
                     {other.instead});
  }
}

/// One plan file apart: the job's keys, the plan's own, and the list of options.
struct Layer {
  Node job;
  Node plan;
  std::vector<Node> options;
  bool has_options = false;     // 'options' of the right kind
  bool faulty_options = false;  // of a wrong one, which is already said
};

Layer read_layer(const std::string& path, Diagnostics& faults) {
  const Node file = read_file(path, faults);
  bound(file, "the plan", most_keys, faults);
  const Node root = with_dashes(file, faults);
  if (!as_map(root, "the plan", faults)) faults.throw_if_any();  // nothing more can be found
  Layer layer{empty_map(root.where), empty_map(root.where), {}, false, false};
  refuse_other_files(root);
  // A model's config.json, or a graph of operators, in place of a plan.
  if (root.child("model-type") || root.child("architectures") || is_graph(root)) {
    Node model = word(path, root.where);
    model.key = "model";
    model.key_where = root.where;
    layer.job.children.push_back(std::move(model));
    return layer;
  }
  MapView map(root, "the plan", faults);
  if (const Node* job = map.map("job")) {
    bound(*job, "the job", most_keys, faults);
    layer.job = with_dashes(*job, faults);
    layer.job.where = root.where;
    for (const Node& child : layer.job.children) {
      if (!is_plan_key(child.key) && child.key != "model") continue;
      faults.error(child.key_where,
                   shardfit::quoted(child.key) + " stands beside 'job', not in it");
    }
    std::erase_if(layer.job.children,
                  [](const Node& child) { return is_plan_key(child.key) || child.key == "model"; });
  }
  if (const Node* model = map.find("model")) layer.job.children.push_back(*model);
  for (const char* key :
       {"prices", "hypothesis", "device-profile", "objective", "budget", "imbalance"}) {
    if (const Node* node = map.find(key)) layer.plan.children.push_back(*node);
  }
  layer.faulty_options = map.find("options") && map.find("options")->kind != Kind::list;
  if (const Node* options = map.list("options")) {
    layer.has_options = true;
    bound(*options, "'options' of the plan", most_options, faults);
    for (const Node& option : options->children) {
      bound(option, "an option", most_keys, faults);
      if (as_map(option, "an option", faults)) {
        layer.options.push_back(with_dashes(option, faults));
      }
    }
  }
  map.finish();
  return layer;
}

/// The command line's keys of the plan and of the job.
Layer split(const Node& command_line) {
  Layer layer{empty_map(command_line.where), empty_map(command_line.where), {}, false, false};
  for (const Node& child : command_line.children) {
    if (child.key == "on") {
      layer.has_options = true;
      for (const Node& on : child.children) {
        Node option = empty_map(on.where);
        option.children.push_back(on);
        option.children.back().key = "on";
        layer.options.push_back(std::move(option));
      }
    } else {
      (is_plan_key(child.key) ? layer.plan : layer.job).children.push_back(child);
    }
  }
  return layer;
}

void read_plan_keys(const Node& keys, PlanSpec& plan, std::optional<Setting<std::string>>& prices,
                    Diagnostics& faults) {
  MapView map(keys, "the plan", faults);
  if (const auto found = map.choice("hypothesis", hypothesis_names())) {
    plan.hypothesis = {static_cast<Hypothesis>(found->value), found->where, ""};
  }
  if (const auto found = map.choice("objective", objective_names())) {
    plan.objective = {static_cast<Objective>(found->value), found->where, ""};
  }
  if (const auto found = map.real("budget", {0, 1e9})) {
    plan.search_budget = {found->value, found->where, ""};
  }
  if (const auto found = map.real("imbalance", {0, 100})) plan.imbalance = found->value;
  if (const auto found = map.string("prices")) prices = {found->value, found->where, ""};
  if (const Node* profiles = map.find("device-profile")) {
    const auto add = [&](const Node& node) {
      if (const auto path = as_string(node, "'device-profile' of the plan", faults)) {
        plan.device_profiles.push_back({*path, node.where, ""});
      }
    };
    if (profiles->kind == Kind::list) {
      for (const Node& node : profiles->children) add(node);
    } else {
      add(*profiles);
    }
  }
}

/// What GPUs exchange through the host goes at the rate of the slowest link.
void set_host_links(const Setting<std::vector<BytesPerSecond>>& links, ClusterSpec& cluster,
                    Diagnostics& faults) {
  if (cluster.count == 1) {
    faults.error(links.where, "'host-links' is given, but one GPU exchanges nothing",
                 {"leave it out"});
    return;
  }
  if (static_cast<std::int64_t>(links.value.size()) != cluster.count) {
    faults.error(links.where,
                 std::to_string(links.value.size()) + " rates of 'host-links' for " +
                     std::to_string(cluster.count) + (cluster.count == 1 ? " GPU" : " GPUs"),
                 {"expected one a GPU"});
    return;
  }
  Link& link = cluster.device.link;
  if (link.peer_access) {
    faults.error(links.where,
                 "'host-links' is given, but GPUs that reach each other's memory send nothing "
                 "of a step through the host",
                 {"leave it out, or give --peer-access no"});
    return;
  }
  BytesPerSecond slowest = links.value.front();
  for (const BytesPerSecond& one : links.value) {
    if (one.value() < slowest.value()) slowest = one;
  }
  link.per_pair = Sourced<BytesPerSecond>{slowest, "host-links", "", "", links.where};
}

/// One option: its device, and the job with the option's own keys and the command line laid over
/// it.
std::optional<OptionSpec> read_option(const Node& option, const Node& job, const Node& command_line,
                                      DeviceCatalog& devices, PlanSpec& plan, Diagnostics& faults) {
  Node keys = job;
  Node own = option;
  std::erase_if(own.children,
                [](const Node& child) { return child.key == "on" || child.key == "name"; });
  lay_over(keys, own, nullptr);  // an option is there to differ from the job
  lay_over(keys, command_line, &plan.overrides);
  OptionSpec spec;
  spec.job = read_job(keys, faults);
  const Node* name = option.child("name");
  const auto text = name ? as_string(*name, "'name' of an option", faults) : std::nullopt;
  const Node* on = option.child("on");
  if (!on) {
    faults.error(option.where, "an option lacks the key 'on'",
                 {"expected [COUNTx]DEVICE, such as h200 or 2xb200"});
    return {};
  }
  auto cluster = read_on(*on, devices, faults);
  if (!cluster) return {};
  spec.cluster = *std::move(cluster);
  if (spec.job.peer_access) {
    Link& link = spec.cluster.device.link;
    if (spec.job.peer_access->value && !link.peer_access) {
      faults.error(spec.job.peer_access->where,
                   "GPUs of " + shardfit::quoted(spec.cluster.device.name) +
                       " do not reach each other's memory",
                   {"give peer-access no, or a --device-profile whose link has peer_access"});
    }
    link.peer_access = spec.job.peer_access->value;
  }
  if (spec.job.host_links) set_host_links(*spec.job.host_links, spec.cluster, faults);
  spec.name = text ? *text : spec.cluster.text;
  const Node* parallel = option.child("parallel");
  if (!text && parallel) spec.name += " " + parallel->text;
  return spec;
}

/// The same override is found once an option; it is said once.
void drop_repeats(std::vector<Override>& overrides) {
  const auto same = [](const Override& a, const Override& b) {
    return a.key == b.key && a.loser_where.source == b.loser_where.source &&
           a.loser_where.offset == b.loser_where.offset;
  };
  std::vector<Override> kept;
  for (Override& candidate : overrides) {
    const bool seen = std::any_of(kept.begin(), kept.end(),
                                  [&](const Override& other) { return same(other, candidate); });
    if (!seen) kept.push_back(std::move(candidate));
  }
  overrides = std::move(kept);
}

/// Two options called "h200" become "h200 #1" and "h200 #2".
void number_equal_names(std::vector<OptionSpec>& options) {
  std::map<std::string, int> count;
  for (const OptionSpec& option : options) ++count[option.name];
  std::map<std::string, int> next;
  for (OptionSpec& option : options) {
    const std::string name = option.name;
    if (count[name] > 1) option.name += " #" + std::to_string(++next[name]);
  }
}

/// A word in place of a plan file that is a model's name.
void check_is_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(path, error) || path.find('/') != std::string::npos) return;
  if (!fs::exists(data_directory() + "/models/" + path + ".yaml", error)) return;
  throw InputError(whole_file(path), "no such file",
                   {"there is a model of this name: give --model " + path});
}

}  // namespace

PlanSpec read_plan(const std::vector<std::string>& files, const Node& command_line,
                   DeviceCatalog& devices, Diagnostics& faults) {
  PlanSpec plan;
  Layer all{empty_map(command_line.where), empty_map(command_line.where), {}, false, false};
  for (const std::string& path : files) {
    check_is_file(path);
    const Layer layer = read_layer(path, faults);
    if (&path == &files.front()) all.job.where = layer.job.where;
    lay_over(all.job, layer.job, &plan.overrides);
    lay_over(all.plan, layer.plan, &plan.overrides);
    if (layer.has_options) all.options = layer.options;
    all.faulty_options = all.faulty_options || layer.faulty_options;
  }
  const Layer last = split(command_line);
  lay_over(all.plan, last.plan, &plan.overrides);
  if (last.has_options) {
    if (!all.options.empty()) {
      plan.overrides.push_back({"options", join_on(last.options), join_on(all.options),
                                last.options.front().where, all.options.front().where});
    }
    all.options = last.options;
  }
  std::optional<Setting<std::string>> prices;
  read_plan_keys(all.plan, plan, prices, faults);
  for (const auto& profile : plan.device_profiles) {
    devices.add_profile(resolve_beside(profile), faults);
  }
  if (prices) plan.prices = read_prices(resolve_beside(*prices), devices, faults);
  if (all.options.empty()) {
    if (!all.faulty_options) {
      faults.error(all.job.where, "no device is given",
                   {"give --on [COUNTx]DEVICE, or 'options' in a plan file"});
    }
    Node keys = all.job;
    lay_over(keys, last.job, nullptr);
    read_job(keys, faults);  // its faults are worth saying all the same
  }
  for (const Node& option : all.options) {
    auto spec = read_option(option, all.job, last.job, devices, plan, faults);
    if (!spec) continue;
    spec->imbalance = plan.imbalance;
    plan.options.push_back(*std::move(spec));
  }
  drop_repeats(plan.overrides);
  number_equal_names(plan.options);
  return plan;
}

}  // namespace shardfit::spec
