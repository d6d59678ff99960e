#pragma once
// The readers of single formats; people call spec/reader.h.

#include "spec/node.h"

namespace shardfit::spec {

/// One YAML document as a tree. Faults that leave a tree (duplicate keys, anchors, aliases, tags,
/// merge keys) go to `faults`; a text that is no YAML throws InputError.
Node read_yaml(const SourcePtr& source, Diagnostics& faults);

/// One JSON value as a tree, likewise. Numbers keep their text; NaN and Infinity, which Python's
/// json writes, come as reals for the typed view to judge.
Node read_json(const SourcePtr& source, Diagnostics& faults);

}  // namespace shardfit::spec
