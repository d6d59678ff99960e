#pragma once
// The order in which the operators of a graph run.

#include "spec/graph_spec.h"

namespace shardfit::spec {

/// Puts every operator after what it reads, and else leaves the order of the file. A cycle is a
/// fault, so is an operator that nothing reads.
void sort_operators(GraphScope& scope, Diagnostics& faults);

}  // namespace shardfit::spec
