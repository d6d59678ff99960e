#pragma once
// A person's own graph of operators (docs/graphs.md): what the file says, every name found, in an
// order in which each operator comes after what it reads.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "spec/family_spec.h"

namespace shardfit::spec {

struct GraphScope;

/// An operator of one of the kinds, or a loop around operators of its own.
struct GraphOperator {
  std::string name;
  const ClassSpec* kind = nullptr;  // null: a loop
  /// What it reads: an operator of its scope by number, or -1 - i for the scope's input i.
  std::vector<std::int32_t> inputs;
  std::vector<std::pair<std::string, Expr>> fields;
  Location where;  // its name
  std::shared_ptr<const GraphScope> body;
};

/// The whole graph, or the body of a loop. A body's first input is what the pass before gave (at
/// first what the loop reads); further ones are values of the scopes around it, read by the loop in
/// the same order.
struct GraphScope {
  std::vector<std::string> inputs;
  std::vector<GraphOperator> operators;  // sorted
  std::vector<std::int32_t> results;     // the loss and further outputs; of a loop one
  Expr times;                            // of a loop's body: how often it runs
  Location where;                        // of the results
};

struct GraphInput {
  std::string name;
  Expr shape;
  Expr dtype;  // none: the dtype that the job's numbers have
  Location where;
};

struct GraphSpec {
  FamilySpec kinds;  // its classes "operator KIND"
  std::string name;
  std::vector<GraphInput> inputs;
  std::vector<ConstantSpec> numbers;  // may be overridden by the model's numbers
  GraphScope whole;
  std::optional<Expr> longest_sequence;
  Location where;
};

/// The kinds of operators: model_specs/graph/operators.yaml.
FamilySpec read_graph_kinds();
/// "operator KIND" as a person writes it; empty where the class is no kind.
std::string kind_name(const ClassSpec& kind);
/// Whether its one input is a list: it joins two operators or more.
bool joins(const ClassSpec& kind);
/// A size that is read off the first input: no field of the person's.
bool is_inferred(const std::string& take);

/// Whether a file is a graph.
bool is_graph(const Node& root);
/// Throws InputError with all faults of names, kinds, fields and order.
std::shared_ptr<const GraphSpec> read_graph(const Node& root);
/// Where the operator of a module's path ("block.3.attend") stands; its scope's place where it is
/// not found.
Location place_of_operator(const GraphSpec& graph, const std::string& path);

}  // namespace shardfit::spec
