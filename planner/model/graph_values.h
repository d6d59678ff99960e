#pragma once
// The values of a graph's operators without numbers: shapes, for the sizes that follow from them.

#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

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
    std::uint32_t make = 0;  // its constructor call: a number for `call`
  };
  /// Builds the operator's module and runs it. One that is like one before, in kind, fields and
  /// inputs, gives what that one gave. Throws ModelError and OverflowError; null where a fault was
  /// reported.
  const Ran* run(const spec::GraphOperator& op, const std::vector<Tensor>& inputs,
                 const std::string& path, std::int64_t pass);
  /// A constructor call, with the places of the first operator that was made so.
  const spec::Expr& call(std::uint32_t make) const { return calls_[make]; }
  /// How often a loop runs; nothing where that is a fault.
  std::optional<std::int64_t> times(const spec::GraphOperator& loop);
  /// The expression over words of the job: numbers and `pass` are filled in.
  spec::Expr written(const spec::Expr& expression, std::int64_t pass);
  /// Whether an expression in the scope uses `pass`.
  bool uses_pass(const spec::GraphScope& scope);

 private:
  Value evaluate(const spec::Expr& expression, std::int64_t pass);
  struct Made {
    spec::Expr call;
    ValueList takes;
    bool in_place = false;
  };
  Made make(const spec::GraphOperator& op, const std::vector<Tensor>& inputs,
            const std::string& path, std::int64_t pass);
  Ran build_and_run(const spec::GraphOperator& op, const std::vector<Tensor>& inputs,
                    const std::string& path, Made made);
  /// Its value; a fault and nothing where it has none. `what` names it.
  Value checked(const spec::Expr& expression, const std::string& what);
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
  std::string key_;  // of the operator that runs
  std::unordered_map<std::string, Ran> ran_;
  std::unordered_map<std::string, std::uint32_t> makes_;
  std::deque<spec::Expr> calls_;
};

}  // namespace shardfit::model
