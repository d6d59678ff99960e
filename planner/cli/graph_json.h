#pragma once
// A model's graph as JSON. One of 10^5 operators is hundreds of megabytes of text, in a fixed form:
// it is put together from its own pieces.

#include <cstdint>
#include <iosfwd>
#include <string>

#include "graph/model_graph.h"

namespace shardfit::cli {

struct GraphDocument {
  std::string model, family;
  std::int64_t micro_batch = 1, sequence = 1;
  std::string precision;  // in words
};

/// The document with its layers, their sum and operators, indented by two.
void write_graph_json(const GraphDocument& document, const graph::ModelGraph& graph,
                      std::ostream& out);

}  // namespace shardfit::cli
