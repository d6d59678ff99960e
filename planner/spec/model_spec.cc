#include "spec/model_spec.h"

#include <algorithm>
#include <filesystem>

#include "spec/data_directory.h"

namespace shardfit::spec {
namespace {

namespace fs = std::filesystem;

struct FamilyEntry {
  std::string file, name;
  std::vector<std::string> types;
};

/// Only the heads of the family files: name and types.
std::vector<FamilyEntry> family_entries() {
  std::vector<FamilyEntry> entries;
  for (const std::string& file : data_files("families")) {
    Diagnostics faults;
    const Node root = read_file(file, faults);
    FamilyEntry entry;
    entry.file = file;
    if (const Node* name = root.child("family")) entry.name = name->text;
    if (const Node* types = root.child("model_types")) {
      for (const Node& type : types->children) entry.types.push_back(type.text);
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

[[noreturn]] void unknown_type(const Node& root, const std::string& type,
                               const std::vector<FamilyEntry>& families) {
  std::vector<std::string> types;
  for (const FamilyEntry& f : families) types.insert(types.end(), f.types.begin(), f.types.end());
  std::sort(types.begin(), types.end());
  const Node* at = root.child("model_type");
  std::vector<std::string> notes = {"expected one of: " + join(types)};
  const std::string near = closest(type, types);
  for (const FamilyEntry& f : families) {
    if (!near.empty() && std::find(f.types.begin(), f.types.end(), near) != f.types.end()) {
      notes.push_back("the nearest family is '" + f.name + "' (" + near +
                      "); a family is one YAML file: docs/model_language.md");
    }
  }
  throw InputError(at ? at->where : root.where,
                   type.empty() ? "no 'model_type' in this config"
                                : "no family for model_type " + shardfit::quoted(type),
                   notes);
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

ModelSpec read_model(const std::string& path_or_name, Location asked_at) {
  std::string path = path_or_name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::string in_data = data_directory() + "/models/" + path_or_name + ".yaml";
    if (fs::exists(in_data, error)) {
      path = in_data;
    } else if (path_or_name.find('/') == std::string::npos) {
      std::vector<std::string> names;
      for (const std::string& file : data_files("models")) names.push_back(fs::path(file).stem());
      if (!asked_at.known()) asked_at = whole_file(path_or_name);
      throw InputError(asked_at, "no file and no model named " + shardfit::quoted(path_or_name),
                       suggest(path_or_name, names));
    }
  }
  Diagnostics faults;
  const Node root = read_file(path, faults);
  faults.throw_if_any();
  if (root.kind != Kind::map) {
    throw InputError(root.where, "expected a model (a map of keys), found " + describe(root));
  }
  const std::vector<FamilyEntry> families = family_entries();
  ModelSpec model;
  model.where = root.where;
  model.model_type = text_at(root, "model_type");
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
    if (std::find(f.types.begin(), f.types.end(), model.model_type) != f.types.end()) {
      model.family_file = f.file;
    }
  }
  if (model.family_file.empty()) unknown_type(root, model.model_type, families);
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

FamilySpec read_family_of(const ModelSpec& model, const std::vector<std::string>& frameworks,
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
  std::vector<std::string> library;
  for (const std::string& framework : frameworks) {
    library.push_back(data_directory() + "/frameworks/" + framework + ".yaml");
  }
  for (const std::string& file : data_files("library")) library.push_back(file);
  return read_family(model.family_file, library, replacing);
}

}  // namespace shardfit::spec
