#pragma once
// Models of tests/data/models, and rows of published.yaml.

#include <string>

#include "program/training.h"
#include "spec/model_spec.h"
#include "support.h"

namespace shardfit::test {

inline spec::Node published() {
  Diagnostics faults;
  spec::Node root = spec::read_file(SHARDFIT_SOURCE_DIR "/tests/published.yaml", faults);
  faults.throw_if_any();
  return root;
}

inline std::string text_of(const spec::Node& map, const char* key) {
  const spec::Node* node = map.child(key);
  return node ? node->text : "";
}

/// A whole number under a key, 0 where it is not there.
inline std::int64_t number_of(const spec::Node& map, const char* key) {
  const spec::Node* node = map.child(key);
  return node ? std::stoll(node->text) : 0;
}

inline spec::ModelSpec model_named(const std::string& name) {
  return spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/" + name + ".json");
}

inline void set_number(spec::ModelSpec& model, const std::string& key, std::int64_t value) {
  spec::override_number(model, key, parse_node(std::to_string(value), "override"));
}

}  // namespace shardfit::test
