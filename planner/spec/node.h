#pragma once
// One plain tree for what a file says, whatever its format. Readers fill it, typed views check it.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostic.h"

namespace shardfit::spec {

enum class Kind {
  null,     // nothing was written, or null
  boolean,  // true, false
  integer,  // decimal digits; of any size
  real,     // any other number, also nan and infinity
  string,
  list,
  map,
  faulty,  // a fault is already reported for it; views pass it over in silence
};

/// A value with its place. Depth is bounded by the readers (deepest_nesting), so recursion over a
/// tree, its destructor included, is safe.
struct Node {
  Kind kind = Kind::null;
  /// A word given without a type of its own (on the command line): taken as a string as well.
  bool untyped = false;
  std::string text;            // of a scalar: as written, without quotes and escapes
  std::string key;             // of a map's child
  Location where;              // the value
  Location key_where;          // the key
  std::vector<Node> children;  // of a list or a map, in file order

  /// The child of a map with this key, or null.
  const Node* child(std::string_view name) const;
};

/// Deepest nesting of lists and maps a reader accepts.
inline constexpr std::size_t deepest_nesting = 100;

/// Most values (scalars, lists and maps) of one text.
inline constexpr std::size_t most_values = 1'000'000;

/// What YAML 1.2's core schema (and JSON) makes of an unquoted word.
Kind classify(std::string_view text);

/// A scalar for a word of the command line.
Node word(std::string text, Location where);

/// What a person would call the value: "the string 'abc'", "a list", "nothing".
std::string describe(const Node& node);

}  // namespace shardfit::spec
