#include "spec/model_spec.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "spec/data_directory.h"
#include "spec/formats.h"
#include "spec/graph_spec.h"

namespace shardfit::spec {
namespace {

namespace fs = std::filesystem;

struct FamilyEntry {
  std::string file, name, framework;
  std::vector<std::string> types;
  std::vector<std::string> dimensions, required;  // keys it reads; those without a default
  bool reads(const std::string& type) const {
    return std::find(types.begin(), types.end(), type) != types.end();
  }
};

/// Of the family files: names and types. `dimensions`: these, too, for which all of each is read.
std::vector<FamilyEntry> family_entries(bool dimensions = false) {
  std::vector<FamilyEntry> entries;
  for (const std::string& file : data_files("families")) {
    Diagnostics faults;
    const std::shared_ptr<const Node> kept =
        dimensions ? read_data(file, faults)
                   : read_data_entries(file, {"family", "framework", "model_types"}, faults);
    const Node& root = *kept;
    FamilyEntry entry;
    entry.file = file;
    if (const Node* name = root.child("family")) entry.name = name->text;
    if (const Node* framework = root.child("framework")) entry.framework = framework->text;
    if (const Node* types = root.child("model_types")) {
      for (const Node& type : types->children) entry.types.push_back(type.text);
    }
    if (const Node* names = root.child("dimensions")) {
      for (const Node& dimension : names->children) {
        entry.dimensions.push_back(dimension.key);
        if (dimension.kind == Kind::null) entry.required.push_back(dimension.key);
      }
    }
    if (!entry.name.empty()) entries.push_back(std::move(entry));
  }
  return entries;
}

std::string text_at(const Node& map, const char* key) {
  const Node* node = map.child(key);
  return node && node->kind == Kind::string ? node->text : "";
}

bool known_type(const std::vector<FamilyEntry>& families, const std::string& type) {
  return std::any_of(families.begin(), families.end(), [&](const FamilyEntry& f) {
    return std::find(f.types.begin(), f.types.end(), type) != f.types.end();
  });
}

/// A config of several parts (text and vision): the part that describes the language model is taken
/// where the outer type is unknown but the inner one is not.
const Node& language_part(const Node& root, const std::vector<FamilyEntry>& families,
                          std::string& type) {
  if (known_type(families, type)) return root;
  if (const Node* text = root.child("text_config"); text && text->kind == Kind::map) {
    const std::string inner = text_at(*text, "model_type");
    if (known_type(families, inner)) {
      type = inner;
      return *text;
    }
  }
  return root;
}

/// "LlamaForCausalLM" as "Llama": some files give the class in place of the type.
std::string without_class(const std::string& type) {
  for (const char* end : {"ForCausalLM", "LMHeadModel", "ForSequenceClassification", "Model"}) {
    if (type.size() > std::strlen(end) && type.ends_with(end)) {
      return type.substr(0, type.size() - std::strlen(end));
    }
  }
  return type;
}

/// The family whose dimensions the file's keys fit best, and what it would need besides.
std::string nearest_by_keys(const Node& root, const std::vector<FamilyEntry>& families) {
  const FamilyEntry* best = nullptr;
  std::size_t best_fit = 2;  // fewer keys in common say nothing
  for (const FamilyEntry& family : families) {
    std::size_t common = 0;  // what a family cannot do without counts twice
    for (const std::string& name : family.dimensions) {
      common += name != "max_position_embeddings" && root.child(name) != nullptr;
    }
    for (const std::string& name : family.required) common += root.child(name) != nullptr;
    if (common <= best_fit) continue;
    best = &family;
    best_fit = common;
  }
  if (!best) return "";
  std::vector<std::string> missing;
  for (const std::string& name : best->required) {
    if (!root.child(name)) missing.push_back(name);
  }
  return "by its keys it is nearest to family '" + best->name + "', which " +
         (missing.empty() ? "reads all it needs here, but not what this type does otherwise"
                          : "needs besides: " + join(missing));
}

[[noreturn]] void unknown_type(const Node& root, const std::string& type) {
  const std::vector<FamilyEntry> families = family_entries(true);
  std::vector<std::string> types;
  for (const FamilyEntry& f : families) types.insert(types.end(), f.types.begin(), f.types.end());
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  const Node* at = root.child("model_type");
  std::vector<std::string> notes = {"expected one of: " + join(types)};
  const std::string near = closest(without_class(type), types);
  bool named = false;
  for (const FamilyEntry& f : families) {
    if (!named && !near.empty() &&
        std::find(f.types.begin(), f.types.end(), near) != f.types.end()) {
      notes.push_back("did you mean '" + near + "'?");
      notes.push_back("the nearest family is '" + f.name + "' (" + near +
                      "); a family is one YAML file: docs/model_language.md");
      named = true;
    }
  }
  const std::string by_keys = named ? "" : nearest_by_keys(root, families);
  if (!by_keys.empty()) {
    notes.push_back(by_keys + "; a family is one YAML file: docs/model_language.md");
  }
  std::string message = "no 'model_type' in this config";
  if (at && at->kind != Kind::string) {
    message = "'model_type' must be text, found " + describe(*at);
  } else if (!type.empty()) {
    message = "no family for model_type " + shardfit::quoted(type);
  }
  throw InputError(at ? at->where : root.where, message, notes);
}

}  // namespace

std::vector<std::string> data_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(data_directory() + "/" + folder, error)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

namespace {

/// A person's own graph: its family is the kinds of operators.
ModelSpec graph_model(const Node& root, const std::string& path) {
  ModelSpec model;
  model.graph = read_graph(root);
  model.where = root.where;
  model.model_type = "graph";
  model.family_file = data_directory() + "/graph/operators.yaml";
  model.name = model.graph->name.empty() ? fs::path(path).stem().string() : model.graph->name;
  model.source = text_at(root, "source");
  Diagnostics faults;
  if (const Node* count = root.child("parameters")) {
    model.expected_parameters = as_integer(*count, "'parameters' of the graph", {1}, faults);
  }
  faults.throw_if_any();
  if (const Node* numbers = root.child("numbers")) model.numbers = *numbers;
  model.numbers.kind = Kind::map;
  if (!model.numbers.where.known()) model.numbers.where = root.where;
  if (const Node* longest = root.child("longest-sequence")) {
    const Node* number =
        longest->kind == Kind::string ? model.numbers.child(longest->text) : longest;
    Node positions = number ? *number : *longest;
    positions.key = "max_position_embeddings";  // where those who ask for it look
    if (positions.kind == Kind::integer) model.numbers.children.push_back(std::move(positions));
  }
  return model;
}

std::vector<std::string> shipped_models() {
  std::vector<std::string> names;
  for (const std::string& file : data_files("models")) names.push_back(fs::path(file).stem());
  return names;
}
}  // namespace

ModelSpec read_model(const std::string& path_or_name, Location asked_at) {
  std::string path = path_or_name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::string in_data = data_directory() + "/models/" + path_or_name + ".yaml";
    if (fs::exists(in_data, error)) {
      path = in_data;
    } else if (path_or_name.find('/') == std::string::npos) {
      if (!asked_at.known()) asked_at = whole_file(path_or_name);
      throw InputError(asked_at, "no file and no model named " + shardfit::quoted(path_or_name),
                       suggest(path_or_name, shipped_models()));
    } else if (asked_at.known()) {
      const std::string near =
          closest(fs::path(path_or_name).filename().string(), shipped_models());
      std::vector<std::string> notes;
      if (!near.empty()) notes.push_back("did you mean the model '" + near + "' that is shipped?");
      throw InputError(asked_at, "no file named " + shardfit::quoted(path_or_name), notes);
    }
  }
  Diagnostics faults;
  const Node root = read_file(path, faults);
  faults.throw_if_any();
  if (root.kind != Kind::map) {
    throw InputError(root.where, "expected a model (a map of keys), found " + describe(root));
  }
  if (is_graph(root)) return graph_model(root, path);
  const std::vector<FamilyEntry> families = family_entries();
  ModelSpec model;
  model.where = root.where;
  model.model_type = text_at(root, "model_type");
  if (const Node* classes = root.child("architectures"); classes && classes->kind == Kind::list) {
    for (const Node& name : classes->children) model.architectures.push_back(name.text);
  }
  if (const Node* quantized = root.child("quantization_config");
      quantized && quantized->kind == Kind::map) {
    const std::string method = text_at(*quantized, "quant_method");
    model.quantization = method.empty() ? "of no named method" : method;
  }
  const std::string architecture = text_at(root, "name");
  if (!architecture.empty() && known_type(families, model.model_type + "." + architecture)) {
    model.model_type += "." + architecture;  // one of a library's many
  }
  model.numbers = language_part(root, families, model.model_type);
  model.name = text_at(root, "_name");
  if (model.name.empty()) model.name = text_at(root, "name");
  if (model.name.empty()) model.name = fs::path(path).stem();
  model.source = text_at(root, "_source");
  if (model.source.empty()) model.source = text_at(root, "source");
  for (const char* key : {"_parameters", "parameters"}) {
    const Node* count = root.child(key);
    if (count && count->kind == Kind::integer) {
      model.expected_parameters = as_integer(*count, key, {1}, faults);
    }
  }
  for (const FamilyEntry& f : families) {
    if (!f.reads(model.model_type)) continue;
    if (!f.framework.empty()) model.framework_families.emplace_back(f.framework, f.file);
    // A framework's own family is taken for others only where no other reads this type.
    if (f.framework.empty() || model.family_file.empty()) model.family_file = f.file;
  }
  if (model.family_file.empty()) unknown_type(root, model.model_type);
  return model;
}

void override_number(ModelSpec& model, const std::string& key, const Node& value) {
  for (Node& child : model.numbers.children) {
    if (child.key == key) {
      child = value;
      child.key = key;
      return;
    }
  }
  model.numbers.children.push_back(value);
  model.numbers.children.back().key = key;
}

std::shared_ptr<const FamilySpec> read_family_of(const ModelSpec& model,
                                                 const std::vector<std::string>& frameworks,
                                                 const std::vector<std::string>& implementations) {
  std::vector<std::string> replacing;
  for (const std::string& name : implementations) {
    const std::vector<std::string> known = data_files("implementations");
    const auto it = std::find_if(known.begin(), known.end(), [&](const std::string& file) {
      return fs::path(file).stem() == name;
    });
    if (it == known.end()) {
      std::vector<std::string> names;
      for (const std::string& file : known) names.push_back(fs::path(file).stem());
      throw InputError(whole_file(name), "no implementation named " + shardfit::quoted(name),
                       suggest(name, names));
    }
    replacing.push_back(*it);
  }
  std::string family_file = model.family_file;
  for (const auto& [framework, file] : model.framework_families) {
    if (std::find(frameworks.begin(), frameworks.end(), framework) != frameworks.end()) {
      family_file = file;
    }
  }
  std::vector<std::string> library;
  for (const std::string& framework : frameworks) {
    library.push_back(data_directory() + "/frameworks/" + framework + ".yaml");
  }
  for (const std::string& file : data_files("library")) library.push_back(file);
  return read_family(family_file, library, replacing);
}

}  // namespace shardfit::spec
