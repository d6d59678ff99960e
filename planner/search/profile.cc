#include "search/profile.h"

#include <algorithm>
#include <filesystem>

#include "spec/model_spec.h"
#include "spec/reader.h"

namespace shardfit::search {

using spec::MapView;
using spec::Node;

std::vector<std::string> modelled_frameworks() {
  std::vector<std::string> names;
  for (const std::string& file : spec::data_files("frameworks")) {
    names.push_back(std::filesystem::path(file).stem().string());
  }
  return names;
}

Profile read_profile(const std::string& framework) {
  static const std::vector<std::string> clip_kinds{"none", "foreach"};
  Diagnostics faults;
  const std::shared_ptr<const Node> file =
      spec::read_data(spec::data_directory() + "/frameworks/" + framework + ".yaml", faults);
  const Node& root = *file;
  Profile profile;
  profile.framework = framework;
  const Node* node = root.child("profile");
  if (!node) faults.error(root.where, "the framework's file lacks the key 'profile'");
  faults.throw_if_any();
  MapView map(*node, "'profile'", faults);
  profile.version = map.require_string("version").value;
  profile.program = map.require_string("program").value;
  profile.program_says = map.require_string("program_says").value;
  if (const Node* optimizer = map.require_map("optimizer")) {
    MapView own(*optimizer, "'optimizer'", faults);
    profile.optimizer =
        static_cast<spec::Optimizer>(own.require_choice("name", spec::optimizer_names()).value);
    profile.optimizer_because = own.require_string("because").value;
    own.finish();
  }
  if (const Node* clip = map.require_map("clip")) {
    MapView own(*clip, "'clip'", faults);
    profile.clips = own.require_choice("kind", clip_kinds).value == 1;
    profile.clip_because = own.require_string("because").value;
    own.finish();
  }
  if (const Node* recompute = map.require_map("recompute")) {
    MapView own(*recompute, "'recompute'", faults);
    profile.reentrant = own.require_boolean("reentrant").value;
    profile.selective = own.require_boolean("selective").value;
    if (const Node* list = own.list("policies")) {
      for (const Node& name : list->children) profile.policies.push_back(name.text);
    }
    own.finish();
  }
  const auto read_ways = [&](const Node* list, const char* key, auto& ways) {
    if (!list) return;
    for (const Node& name : list->children) {
      const auto found = spec::as_choice(name, quoted(key), spec::parallel_names(), faults);
      if (found) ways.push_back(static_cast<spec::Parallel>(*found));
    }
  };
  read_ways(map.require_list("parallel"), "parallel", profile.parallel);
  read_ways(map.list("on_request"), "on_request", profile.on_request);
  if (const auto own = map.boolean("own_models")) profile.own_models = own->value;
  map.finish();
  faults.throw_if_any();
  return profile;
}

bool offers_policy(const Profile& profile, const std::string& policy) {
  if (!profile.selective) return false;
  const auto& known = profile.policies;
  return known.empty() || std::find(known.begin(), known.end(), policy) != known.end();
}

std::vector<std::string> default_adapter_targets(const std::string& model_type) {
  Diagnostics faults;
  const std::shared_ptr<const Node> file =
      spec::read_data(spec::data_directory() + "/adapter_targets.yaml", faults);
  const Node& root = *file;
  std::vector<std::string> targets;
  if (const Node* types = root.child("targets")) {
    if (const Node* names = types->child(model_type)) {
      for (const Node& name : names->children) targets.push_back(name.text);
    }
  }
  faults.throw_if_any();
  return targets;
}

}  // namespace shardfit::search
