#pragma once
// `shardfit graph MODEL`: layers and operators of a model.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "spec/node.h"

namespace shardfit::cli {

struct GraphOptions {
  std::string model;  // a config.json, a file of model_specs or its name
  /// Values of --micro-batch, --sequence, --precision, --attention, --head, as words with their
  /// places.
  std::optional<spec::Node> micro_batch, sequence, precision, attention, head;
  std::vector<std::string> implementations;  // files of model_specs/implementations
  std::optional<std::string> dot;            // where Graphviz goes; "-": the output
  bool json = false;
  bool kinds = false;  // operator kinds, functions and modules of the model language
};

/// Prints the table a layer (or JSON, DOT, the kinds). Throws InputError.
int graph_command(const GraphOptions& options, std::ostream& out, std::ostream& err);

/// The operator kinds, the functions of the model language and the library's modules.
void print_kinds(std::ostream& out);
/// The functions alone, one a line with its arguments: a part of docs/model_language.md.
void write_functions(std::ostream& out);
/// Kinds of operators of a person's own graph as Markdown: a part of docs/graphs.md.
void write_graph_kinds(std::ostream& out);
/// The operator kinds as Markdown: docs/operators.md.
void write_operator_page(std::ostream& out);

}  // namespace shardfit::cli
