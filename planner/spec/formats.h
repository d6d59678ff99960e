#pragma once
// The readers of single formats and of parts of files; people call spec/reader.h.

#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>

#include "spec/node.h"

namespace shardfit::spec {

/// One YAML document as a tree. Faults that leave a tree (duplicate keys, anchors, aliases, tags,
/// merge keys) go to `faults`; a text that is no YAML throws InputError.
Node read_yaml(const SourcePtr& source, Diagnostics& faults);

/// The same for the YAML that people write most: about ten times as fast. Nothing, and no fault,
/// where the text has anything else in it, faults included; read_yaml asks here first.
std::optional<Node> read_plain_yaml(const SourcePtr& source, Diagnostics& faults);
/// The same by libyaml alone.
Node read_any_yaml(const SourcePtr& source, Diagnostics& faults);

/// One JSON value as a tree, likewise. Numbers keep their text; NaN and Infinity, which Python's
/// json writes, come as reals for the typed view to judge.
Node read_json(const SourcePtr& source, Diagnostics& faults);

/// Of a data file that is a map, its entries with these keys, each at the beginning of a line; what
/// else it holds is not looked at, and other texts are read whole. Kept as read_data does.
std::shared_ptr<const Node> read_data_entries(const std::string& path,
                                              std::initializer_list<std::string_view> keys,
                                              Diagnostics& faults);

}  // namespace shardfit::spec
