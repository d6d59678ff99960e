#pragma once
// Puts a reader's events together into a Node; the rules both formats share live here.

#include <vector>

#include "spec/node.h"

namespace shardfit::spec {

/// Fed in document order. Reports duplicate keys; throws InputError for nesting or a number of
/// values past the limits, and for keys that are not plain words.
class NodeBuilder {
 public:
  NodeBuilder(SourcePtr source, Diagnostics& faults)
      : source_(std::move(source)), faults_(faults) {}

  /// A scalar, a key where a map waits for one.
  void scalar(Kind kind, std::string text, std::size_t offset, std::size_t length);
  void begin(Kind kind, std::size_t offset);
  void end();

  bool empty() const { return root_.empty(); }
  /// The value is there whole.
  bool done() const { return !root_.empty() && open_.empty(); }
  /// True where the next scalar is a key of the innermost map.
  bool at_key() const { return !open_.empty() && open_.back().awaits_key; }
  /// The finished tree.
  Node take() { return std::move(root_.front()); }

 private:
  struct Open {
    Node* node;
    bool awaits_key;
  };
  Node& place(Kind kind, Location where);
  void check_duplicates(const Node& map);

  SourcePtr source_;
  Diagnostics& faults_;
  std::vector<Node> root_;
  // Pointers stay valid: only the innermost open node gains children.
  std::vector<Open> open_;
  std::size_t values_ = 0;
  std::string key_;
  Location key_where_;
};

}  // namespace shardfit::spec
