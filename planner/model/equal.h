#pragma once
// When values of the model language are equal.

#include "model/value.h"

namespace shardfit::model {

/// The same number (of whatever kind), word, dtype or tensor; lists and modules never are.
bool equal(const Value& a, const Value& b);

}  // namespace shardfit::model
