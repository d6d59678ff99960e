#pragma once
#include <iosfwd>

#include "base/diagnostic.h"

namespace shardfit::cli {

/// {"errors": [{"file", "line", "column", "message", "notes"}]}: what --json gives for bad input.
void write_errors_json(const InputError& error, std::ostream& out);

}  // namespace shardfit::cli
