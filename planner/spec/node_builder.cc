#include "spec/node_builder.h"

#include <algorithm>

#include "base/format.h"

namespace shardfit::spec {

void NodeBuilder::scalar(Kind kind, std::string text, std::size_t offset, std::size_t length) {
  Location where{source_, offset, length};
  if (at_key()) {
    key_ = std::move(text);
    key_where_ = std::move(where);
    open_.back().awaits_key = false;
    return;
  }
  place(kind, std::move(where)).text = std::move(text);
}

void NodeBuilder::begin(Kind kind, std::size_t offset) {
  Location where{source_, offset, 1};
  if (at_key()) {
    throw InputError(where, "a list or map stands where a key was expected");
  }
  if (open_.size() >= deepest_nesting) {
    throw InputError(where,
                     "lists and maps are nested deeper than " + std::to_string(deepest_nesting));
  }
  Node& node = place(kind, std::move(where));
  open_.push_back({&node, kind == Kind::map});
}

void NodeBuilder::end() {
  if (open_.back().node->kind == Kind::map) check_duplicates(*open_.back().node);
  open_.pop_back();
}

Node& NodeBuilder::place(Kind kind, Location where) {
  if (++values_ > most_values) {
    throw InputError(where, "holds more than " +
                                format_count(static_cast<std::int64_t>(most_values)) + " values");
  }
  Node node;
  node.kind = kind;
  node.where = std::move(where);
  if (open_.empty()) {
    root_.push_back(std::move(node));
    return root_.back();
  }
  Open& parent = open_.back();
  if (parent.node->kind == Kind::map) {
    node.key = std::move(key_);
    node.key_where = std::move(key_where_);
    parent.awaits_key = true;
  }
  parent.node->children.push_back(std::move(node));
  return parent.node->children.back();
}

void NodeBuilder::check_duplicates(const Node& map) {
  std::vector<const Node*> sorted;
  sorted.reserve(map.children.size());
  for (const Node& child : map.children) sorted.push_back(&child);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Node* a, const Node* b) { return a->key < b->key; });
  const Node* first = nullptr;
  for (const Node* node : sorted) {
    if (first && first->key == node->key) {
      faults_.error(node->key_where, "duplicate key " + quoted(node->key),
                    {"first given at line " + std::to_string(first->key_where.line())});
    } else {
      first = node;
    }
  }
}

}  // namespace shardfit::spec
