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
  void scalar(Kind kind, std::string_view text, std::size_t offset, std::size_t length);
  void begin(Kind kind, std::size_t offset);
  void end();

  bool empty() const { return values_ == 0; }
  /// The value is there whole.
  bool done() const { return !empty() && open_.empty(); }
  /// True where the next scalar is a key of the innermost map.
  bool at_key() const { return !open_.empty() && open_.back().awaits_key; }
  /// The finished tree.
  Node take() { return std::move(finished_.front()); }

 private:
  struct Open {
    Node node;
    std::size_t first;  // its first child among those finished
    bool awaits_key;
  };
  /// Fills in a value that stands in the innermost open one.
  void start(Node& node, Kind kind, Location where);
  void check_duplicates(const Node& map);
  void report_duplicates(const Node& map);

  SourcePtr source_;
  Diagnostics& faults_;
  std::vector<Open> open_;
  std::vector<Node> finished_;  // children of what is open, the innermost last; at last the root
  std::size_t values_ = 0;
  std::string key_;
  Location key_where_;
};

}  // namespace shardfit::spec
