#pragma once
// One model: its family and its numbers, from model_specs/models/*.yaml or a Hugging Face
// config.json.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spec/data_directory.h"
#include "spec/family_spec.h"
#include "spec/node.h"

namespace shardfit::spec {

struct GraphSpec;

struct ModelSpec {
  std::string name;
  std::string source;
  std::string model_type;
  std::string family_file;
  std::vector<std::string> architectures;  // classes of transformers that the file names
  std::string quantization;                // method of its quantization_config; "" where none
  /// Families of frameworks that have their own form of this type: framework, file.
  std::vector<std::pair<std::string, std::string>> framework_families;
  Node numbers;                                     // a map: what the file gives, by key
  std::optional<std::int64_t> expected_parameters;  // stated by the file
  std::shared_ptr<const GraphSpec> graph;           // where the file is a graph of a person's own
  Location where;
};

/// Files of a folder below the data directory that end in `.yaml`, sorted.
std::vector<std::string> data_files(const std::string& folder);

/// Reads a model by path (config.json or a model file) or by the name of a file in
/// model_specs/models. `overrides` replace single numbers. Throws InputError that names the nearest
/// family where the type is not known.
ModelSpec read_model(const std::string& path_or_name, Location asked_at = {});
/// Replaces or adds a number.
void override_number(ModelSpec& model, const std::string& key, const Node& value);

/// The family of a model with the library files beside it. `implementations` (files of
/// model_specs/implementations) replace modules and functions of the family and the library.
std::shared_ptr<const FamilySpec> read_family_of(
    const ModelSpec& model, const std::vector<std::string>& frameworks,
    const std::vector<std::string>& implementations = {});

}  // namespace shardfit::spec
