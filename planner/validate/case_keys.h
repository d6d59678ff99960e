#pragma once
#include <string>

#include "spec/node.h"

namespace shardfit::validate {

/// The first key of a case that says something about its program and that no reader here takes up:
/// "key 'liger'"; "" where all of them are read. Keys that are off (false, none, empty) say
/// nothing.
std::string unread_key(const spec::Node& a_case);

}  // namespace shardfit::validate
