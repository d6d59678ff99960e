#include "spec/family_spec.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>

namespace shardfit::spec {
namespace {

std::string text_of(const Node* node, const char* what, Diagnostics& faults) {
  if (!node) return "";
  return as_string(*node, what, faults).value_or("");
}

std::vector<ArgumentSpec> read_arguments(const Node* list, Diagnostics& faults) {
  std::vector<ArgumentSpec> out;
  if (!list || !as_list(*list, "arguments", faults)) return out;
  for (const Node& node : list->children) {
    ArgumentSpec argument;
    const std::size_t equals = node.text.find('=');
    if (equals == std::string::npos) {
      argument.name = node.text;
    } else {
      argument.name = node.text.substr(0, node.text.find_last_not_of(' ', equals - 1) + 1);
      Node rest = node;
      rest.text = node.text.substr(equals + 1);
      argument.fallback = parse_expression(rest, faults);
    }
    out.push_back(std::move(argument));
  }
  return out;
}

std::vector<TensorSpec> read_tensors(const Node* map, Diagnostics& faults) {
  std::vector<TensorSpec> out;
  if (!map || !as_map(*map, "tensors", faults)) return out;
  for (const Node& child : map->children) {
    TensorSpec tensor;
    tensor.name = child.key;
    tensor.where = child.key_where;
    if (child.kind == Kind::map) {
      MapView view(child, "tensor '" + child.key + "'", faults);
      if (const Node* shape = view.require("shape")) {
        tensor.shape = parse_expression(*shape, faults);
      }
      tensor.dtype = text_of(view.find("dtype"), "dtype", faults);
      if (const auto host = view.boolean("host")) tensor.host = host->value;
      if (const Node* counted = view.find("counted")) {
        tensor.counted = parse_expression(*counted, faults);
      }
      view.finish();
    } else {
      tensor.shape = parse_expression(child, faults);
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

std::vector<ConstantSpec> read_constants(const Node* map, Diagnostics& faults) {
  std::vector<ConstantSpec> out;
  if (!map || !as_map(*map, "constants", faults)) return out;
  for (const Node& child : map->children) {
    out.push_back({child.key, parse_expression(child, faults)});
  }
  return out;
}

void read_first(const Node& list, ClassSpec& c, Diagnostics& faults) {
  if (!as_list(list, "children to build first", faults)) return;
  for (const Node& name : list.children) {
    const bool known = std::any_of(c.children.begin(), c.children.end(),
                                   [&](const ChildSpec& child) { return child.name == name.text; });
    if (!known) faults.error(name.where, "'" + name.text + "' is no child of '" + c.name + "'");
    c.first.push_back(name.text);
  }
}

ClassSpec read_class(const Node& node, Diagnostics& faults) {
  ClassSpec c;
  c.name = node.key;
  c.where = node.key_where;
  MapView map(node, "module '" + node.key + "'", faults);
  c.takes = read_arguments(map.find("takes"), faults);
  c.constants = read_constants(map.find("constants"), faults);
  c.parameters = read_tensors(map.find("parameters"), faults);
  c.buffers = read_tensors(map.find("buffers"), faults);
  if (const Node* children = map.map("children")) {
    for (const Node& child : children->children) {
      c.children.push_back({child.key, parse_expression(child, faults), child.key_where});
    }
  }
  c.inputs = read_arguments(map.find("inputs"), faults);
  if (const Node* first = map.find("first")) read_first(*first, c, faults);
  if (const Node* construct = map.find("construct"))
    c.construct = parse_statements(*construct, faults);
  if (const Node* forward = map.find("forward")) c.forward = parse_statements(*forward, faults);
  if (const auto unit = map.boolean("recompute_unit")) c.recompute_unit = unit->value;
  if (const auto linear = map.boolean("is_linear")) c.is_linear = linear->value;
  c.summary = text_of(map.find("summary"), "summary", faults);
  c.saves = text_of(map.find("saves"), "saves", faults);
  c.source = text_of(map.find("source"), "source", faults);
  map.finish();
  return c;
}

void read_classes(const Node* map, FamilySpec& family, Diagnostics& faults) {
  if (!map || !as_map(*map, "modules", faults)) return;
  for (const Node& child : map->children) {
    if (!family.find_class(child.key)) family.classes.push_back(read_class(child, faults));
  }
}

void read_dimensions(const Node* map, FamilySpec& family, Diagnostics& faults) {
  if (!map || !as_map(*map, "dimensions", faults)) return;
  for (const Node& child : map->children) {
    DimensionSpec d;
    d.name = child.key;
    d.where = child.key_where;
    if (child.kind != Kind::null) {
      MapView view(child, "dimension '" + child.key + "'", faults);
      if (const Node* fallback = view.find("default")) {
        d.fallback = parse_expression(*fallback, faults);
      }
      if (const Node* from = view.list("from")) {
        for (const Node& key : from->children) d.from.push_back(key.text);
      }
      if (const auto none = view.boolean("may_be_none")) d.may_be_none = none->value;
      view.finish();
    }
    family.dimensions.push_back(std::move(d));
  }
}

void read_ties(const Node* list, FamilySpec& family, Diagnostics& faults) {
  if (!list || !as_list(*list, "ties", faults)) return;
  for (const Node& node : list->children) {
    MapView map(node, "tie", faults);
    TieSpec tie;
    tie.where = node.where;
    tie.target = text_of(map.require("parameter"), "parameter", faults);
    tie.source = text_of(map.require("is"), "is", faults);
    if (const Node* when = map.require("when")) tie.when = parse_expression(*when, faults);
    map.finish();
    family.ties.push_back(std::move(tie));
  }
}

/// A file of modules without a family: those that are there already win.
void read_library(const Node& extra, FamilySpec& family, Diagnostics& faults) {
  MapView extra_map(extra, "library", faults);
  extra_map.find("summary");
  extra_map.find("source");
  extra_map.find("profile");  // a framework's own settings: search/profile.h
  const Node* modules = extra_map.require("modules");
  if (modules && modules->child("make_batch")) family.asks_for_batch = true;
  read_classes(modules, family, faults);
  extra_map.finish();
}

}  // namespace

const ClassSpec* FamilySpec::find_class(const std::string& class_name) const {
  const auto it = std::find_if(classes.begin(), classes.end(),
                               [&](const ClassSpec& c) { return c.name == class_name; });
  return it == classes.end() ? nullptr : &*it;
}

namespace {

using NodePtr = std::shared_ptr<const Node>;

FamilySpec family_of(const Node& root, std::span<const NodePtr> replacing,
                     std::span<const NodePtr> library, Diagnostics& faults) {
  FamilySpec family;
  family.where = root.where;
  MapView map(root, "family", faults);
  family.name = text_of(map.require("family"), "family", faults);
  family.framework = text_of(map.find("framework"), "framework", faults);
  family.summary = text_of(map.find("summary"), "summary", faults);
  family.source = text_of(map.find("source"), "source", faults);
  if (const Node* types = map.list("model_types")) {
    for (const Node& type : types->children) family.model_types.push_back(type.text);
  }
  family.built_in = text_of(map.find("built_in"), "built_in", faults);
  if (const Node* rates = map.list("dropouts")) {
    for (const Node& rate : rates->children) family.dropouts.push_back(rate.text);
  }
  read_dimensions(map.find("dimensions"), family, faults);
  family.checks = read_constants(map.find("checks"), faults);
  if (const Node* longest = map.find("longest_sequence")) {
    family.longest_sequence = parse_expression(*longest, faults);
  }
  if (const Node* heads = map.require_map("heads")) {
    for (const Node& child : heads->children) family.heads.emplace_back(child.key, child.text);
  }
  for (const NodePtr& file : replacing) read_library(*file, family, faults);
  read_classes(map.require("modules"), family, faults);
  family.own_batch = family.find_class("make_batch") != nullptr;
  read_ties(map.find("ties"), family, faults);
  map.finish();
  for (const NodePtr& file : library) read_library(*file, family, faults);
  faults.throw_if_any();
  return family;
}

}  // namespace

std::shared_ptr<const FamilySpec> read_family(const std::string& path,
                                              const std::vector<std::string>& library,
                                              const std::vector<std::string>& replacing) {
  struct Kept {
    std::vector<NodePtr> files;  // as long as they are kept, no other file has their addresses
    std::shared_ptr<const FamilySpec> family;
  };
  static std::mutex mutex;
  static auto& families = *new std::map<std::vector<const Node*>, Kept>;  // never taken down
  Diagnostics faults;
  std::vector<NodePtr> files{read_data(path, faults)};
  for (const std::string& file : replacing) files.push_back(read_data(file, faults));
  for (const std::string& file : library) files.push_back(read_data(file, faults));
  std::vector<const Node*> key;
  for (const NodePtr& file : files) key.push_back(file.get());
  key.insert(key.begin() + 1 + static_cast<std::ptrdiff_t>(replacing.size()), nullptr);
  const std::lock_guard<std::mutex> lock(mutex);
  Kept& kept = families[key];
  if (!kept.family) {
    const std::span<const NodePtr> rest = std::span<const NodePtr>(files).subspan(1);
    kept.family = std::make_shared<const FamilySpec>(family_of(
        *files.front(), rest.first(replacing.size()), rest.subspan(replacing.size()), faults));
    kept.files = std::move(files);
  }
  return kept.family;
}

}  // namespace shardfit::spec
