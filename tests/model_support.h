#pragma once
// Models of tests/data/models, and rows of published.yaml.

#include <string>
#include <vector>

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

/// What the allocator sees, and the operators, exchanges and events between; storages and events by
/// the order in which they come up.
inline std::string sequence(const Program& program) {
  std::vector<std::size_t> order(program.storages.size());
  std::vector<std::size_t> events(program.events);
  std::size_t next = 0, next_event = 0;
  std::string text;
  const auto add = [&text](const char* word, std::size_t number) {
    text += word + std::to_string(number);
  };
  for (const Instruction& i : program.instructions) {
    switch (i.action) {
      case Action::allocate: {
        order[i.id] = next++;
        const StorageInfo& storage = program.storages[i.id];
        text += "a" + std::to_string(storage.bytes) + category_name(storage.category);
        break;
      }
      case Action::release:
        add("f", order[i.id]);
        break;
      case Action::record_stream:
        add("used", order[i.id]);
        break;
      case Action::phase:
        text += program.phases[i.id].name + std::to_string(program.phases[i.id].step);
        break;
      case Action::compute:
        text += program.computes[i.id].kind;
        break;
      case Action::collective: {
        const Collective& c = program.collectives[i.id];
        text += collective_name(c.kind) + std::to_string(c.bytes) + "/" + std::to_string(c.peer);
        break;
      }
      case Action::record_event:
        events[i.id] = ++next_event;  // may be recorded anew
        add("e", events[i.id]);
        break;
      case Action::wait_event:
        add("w", events[i.id]);
        break;
      case Action::host_wait:
        add("h", events[i.id]);
        break;
      default:
        break;
    }
    if (i.stream != 0) add("@", i.stream);
    text += ' ';
  }
  return text;
}

inline void set_number(spec::ModelSpec& model, const std::string& key, std::int64_t value) {
  spec::override_number(model, key, parse_node(std::to_string(value), "override"));
}

}  // namespace shardfit::test
