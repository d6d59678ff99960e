#pragma once
// The values of a graph's operators without numbers: shapes, for the sizes that follow from them.

#include <deque>
#include <map>
#include <optional>

#include "model/machine.h"
#include "spec/graph_spec.h"

namespace shardfit::model {

using tensor::Tensor;

/// Runs single operators of a graph, for a batch of 2.
class GraphValues {
 public:
  static constexpr std::int64_t batch = 2;

  /// `numbers`: what the model's file gives for the graph's numbers.
  GraphValues(const spec::GraphSpec& graph, const spec::Node& numbers);

  Diagnostics faults;

  std::int64_t sequence() const { return sequence_; }
  Tensor input(const spec::GraphInput& input);

  struct Ran {
    Tensor result;
    bool has_parameters = false;
    bool in_place = false;
  };
  /// Builds the operator's module and runs it; `make` gets the arguments of its constructor. Throws
  /// ModelError and OverflowError.
  Ran run(const spec::GraphOperator& op, const std::vector<Tensor>& inputs, const std::string& path,
          std::int64_t pass, spec::Expr& make);
  /// How often a loop runs; nothing where that is a fault.
  std::optional<std::int64_t> times(const spec::GraphOperator& loop);
  /// The expression over words of the job: numbers and `pass` are filled in.
  spec::Expr written(const spec::Expr& expression, std::int64_t pass);
  /// Whether an expression in the scope uses `pass`.
  bool uses_pass(const spec::GraphScope& scope);

 private:
  Value evaluate(const spec::Expr& expression, std::int64_t pass);
  void check_name(const spec::Expr& name, std::int64_t pass);
  void read_numbers(const spec::Node& numbers);

  const spec::GraphSpec& graph_;
  std::map<std::string, spec::Expr> numbers_;
  Globals globals_;
  std::deque<std::string> texts_;
  tensor::Runtime runtime_;
  Library library_;
  Machine machine_;
  std::int64_t sequence_ = 64;
  std::map<const spec::GraphScope*, bool> uses_pass_;
};

}  // namespace shardfit::model
