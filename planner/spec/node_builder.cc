#include "spec/node_builder.h"

#include <algorithm>
#include <iterator>

#include "base/format.h"
#include "base/name_table.h"

namespace shardfit::spec {

void NodeBuilder::scalar(Kind kind, std::string_view text, std::size_t offset, std::size_t length) {
  if (at_key()) {
    key_ = text;
    key_where_ = {source_, offset, length};
    open_.back().awaits_key = false;
    return;
  }
  Node& node = finished_.emplace_back();
  start(node, kind, {source_, offset, length});
  node.text = text;
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
  Node node;
  start(node, kind, std::move(where));
  open_.push_back({std::move(node), finished_.size(), kind == Kind::map});
}

void NodeBuilder::end() {
  Open& open = open_.back();
  const auto first = finished_.begin() + static_cast<std::ptrdiff_t>(open.first);
  open.node.children.assign(std::move_iterator(first), std::move_iterator(finished_.end()));
  finished_.erase(first, finished_.end());
  finished_.push_back(std::move(open.node));
  open_.pop_back();
  if (finished_.back().kind == Kind::map) check_duplicates(finished_.back());
}

void NodeBuilder::start(Node& node, Kind kind, Location where) {
  if (++values_ > most_values) {
    throw InputError(where, "holds more than " +
                                format_count(static_cast<std::int64_t>(most_values)) + " values");
  }
  node.kind = kind;
  node.where = std::move(where);
  if (open_.empty() || open_.back().node.kind != Kind::map) return;
  node.key = std::move(key_);
  node.key_where = std::move(key_where_);
  open_.back().awaits_key = true;
}

void NodeBuilder::check_duplicates(const Node& map) {
  constexpr std::size_t few = 8;
  const std::vector<Node>& children = map.children;
  bool twice = false;
  if (children.size() <= few) {
    for (std::size_t i = 1; i < children.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) twice = twice || children[i].key == children[j].key;
    }
  } else {
    NameTable names(children.size());
    for (const Node& child : children) names.add(child.key, 0);
    twice = names.size() < children.size();
  }
  if (twice) report_duplicates(map);
}

void NodeBuilder::report_duplicates(const Node& map) {
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
