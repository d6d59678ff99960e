#include "model/graph_family.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/format.h"
#include "base/units.h"
#include "model/graph_values.h"
#include "tensor/ops.h"

namespace shardfit::model {
namespace {

using spec::ArgumentSpec;
using spec::ClassSpec;
using spec::Expr;
using spec::ExprKind;
using spec::GraphOperator;
using spec::GraphScope;
using spec::Statement;
using spec::StatementKind;

constexpr std::int64_t most_operators = 250'000;  // with loops unrolled
constexpr const char* network = "the graph";

/// Names of the language that no person can write, so that they never hide an operator's.
std::string local(const std::string& name) { return "=" + name; }

Expr named(std::string text, Location where = {}) {
  Expr e;
  e.kind = ExprKind::name;
  e.text = std::move(text);
  e.where = std::move(where);
  return e;
}

Expr call(std::string callee, Location where) {
  Expr e;
  e.kind = ExprKind::call;
  e.text = std::move(callee);
  e.where = std::move(where);
  return e;
}

void add_argument(Expr& call_of, Expr value, std::string name = "") {
  call_of.children.push_back(std::move(value));
  call_of.names.push_back(std::move(name));
}

Statement statement(StatementKind kind, std::vector<std::string> targets, Expr value) {
  Statement s;
  s.kind = kind;
  s.targets = std::move(targets);
  s.value = std::move(value);
  return s;
}

std::string shape_of(const Tensor& t) { return tensor::shape_text(t.shape()); }

/// Runs the graph once and writes down the classes it needs.
class Translator {
 public:
  Translator(const spec::ModelSpec& model, spec::FamilySpec& out)
      : graph_(*model.graph), out_(out), values_(graph_, model.numbers), faults_(values_.faults) {}

  void run() {
    std::vector<Tensor> inputs;
    for (const spec::GraphInput& input : graph_.inputs) inputs.push_back(values_.input(input));
    faults_.throw_if_any();
    const Made made = scope(graph_.whole, inputs, "", -1, network);
    check_loss(made);
    faults_.throw_if_any();
    out_.classes.push_back(batch());
    out_.heads = {{"graph", network}};
    if (graph_.longest_sequence) {
      out_.longest_sequence = values_.written(*graph_.longest_sequence, -1);
    }
  }

 private:
  struct Made {
    std::string type;  // its class
    std::vector<Tensor> results;
    std::vector<bool> trained;  // of each: something before it has parameters
  };
  /// One value of a scope while it runs.
  struct Held {
    Tensor tensor;  // empty: it could not be made
    bool trained = false;
    std::int32_t readers = 0;
    std::int32_t last = -1;  // the last operator that reads it
  };
  struct Pass {
    std::vector<Tensor> inputs;
    Made made;
  };

  Held& value(std::vector<Held>& held, const GraphScope& s, std::int32_t number) {
    const auto inputs = static_cast<std::int32_t>(s.inputs.size());
    return held[static_cast<std::size_t>(number < 0 ? -1 - number : inputs + number)];
  }
  static const std::string& name_of(const GraphScope& s, std::int32_t number) {
    return number < 0 ? s.inputs[static_cast<std::size_t>(-1 - number)]
                      : s.operators[static_cast<std::size_t>(number)].name;
  }

  std::vector<Held> held_of(const GraphScope& s, const std::vector<Tensor>& inputs) {
    std::vector<Held> held(s.inputs.size() + s.operators.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) held[i].tensor = inputs[i];
    for (std::size_t i = 0; i < s.operators.size(); ++i) {
      for (const std::int32_t input : s.operators[i].inputs) {
        Held& h = value(held, s, input);
        ++h.readers;
        h.last = static_cast<std::int32_t>(i);
      }
    }
    for (const std::int32_t result : s.results) {
      Held& h = value(held, s, result);
      ++h.readers;
      h.last = static_cast<std::int32_t>(s.operators.size());
    }
    return held;
  }

  /// The class of a scope for these inputs; `pass` counts the passes of a loop.
  Made scope(const GraphScope& s, const std::vector<Tensor>& inputs, const std::string& path,
             std::int64_t pass, const std::string& type_name) {
    ClassSpec type;
    type.name = type_name;
    type.where = s.where;
    type.recompute_unit = !path.empty() && loops_ == 1;
    for (const std::string& input : s.inputs) type.inputs.push_back({local(input), {}});
    std::vector<Held> held = held_of(s, inputs);
    for (std::size_t i = 0; i < s.operators.size(); ++i) {
      const GraphOperator& op = s.operators[i];
      Held& result = held[s.inputs.size() + i];
      std::vector<Held*> read;
      for (const std::int32_t input : op.inputs) read.push_back(&value(held, s, input));
      if (op.body) {
        const bool ends = goes_into_loop(op, op.inputs.front()) &&
                          read.front()->last == static_cast<std::int32_t>(i);
        loop(op, read, result, path, type);
        call_loop(s, op, ends, type);
      } else {
        one(s, op, read, result, path, pass, type);
      }
      drop(s, op, held, static_cast<std::int32_t>(i), type);
    }
    Made made{type_name, {}, {}};
    Expr list;
    list.kind = ExprKind::list;
    for (const std::int32_t result : s.results) {
      const Held& h = value(held, s, result);
      made.results.push_back(h.tensor);
      made.trained.push_back(h.trained);
      list.children.push_back(named(local(name_of(s, result))));
    }
    if (!path.empty() && !list.children.empty()) list = Expr(list.children.front());
    type.forward.push_back(statement(StatementKind::give_back, {}, std::move(list)));
    out_.classes.push_back(std::move(type));
    return made;
  }

  /// Whether a loop reads a value only to begin with.
  static bool goes_into_loop(const GraphOperator& op, std::int32_t input) {
    return op.inputs.front() == input && std::count(op.inputs.begin(), op.inputs.end(), input) == 1;
  }

  /// Values that nothing reads any more go after the operator that was the last to do so.
  void drop(const GraphScope& s, const GraphOperator& op, std::vector<Held>& held, std::int32_t at,
            ClassSpec& type) {
    std::vector<std::string> gone;
    for (const std::int32_t input : op.inputs) {
      Held& h = value(held, s, input);
      if (h.last != at) continue;
      h.tensor.reset();
      h.last = -1;
      if (op.body && goes_into_loop(op, input)) continue;  // dropped there
      gone.push_back(local(name_of(s, input)));
    }
    if (!gone.empty()) {
      type.forward.push_back(statement(StatementKind::drop, std::move(gone), {}));
    }
  }

  void count(std::int64_t more, const Location& where) {
    operators_ += more;
    if (operators_ <= most_operators) return;
    faults_.error(where, "more than " + format_count(most_operators) + " operators with this one");
    faults_.throw_if_any();
  }

  void one(const GraphScope& s, const GraphOperator& op, const std::vector<Held*>& read,
           Held& result, const std::string& path, std::int64_t pass, ClassSpec& type) {
    count(1, op.where);
    const bool joined = spec::joins(*op.kind);
    Expr run = call(op.name, op.where);
    Expr list;
    list.kind = ExprKind::list;
    std::vector<Tensor> inputs;
    bool whole = true;
    for (std::size_t i = 0; i < read.size(); ++i) {
      Expr name = named(local(name_of(s, op.inputs[i])));
      if (joined) {
        list.children.push_back(std::move(name));
      } else {
        add_argument(run, std::move(name));
      }
      inputs.push_back(read[i]->tensor);
      whole = whole && read[i]->tensor;
      result.trained = result.trained || read[i]->trained;
    }
    if (joined) add_argument(run, std::move(list));
    if (whole) {
      try {
        Expr make = call(op.kind->name, op.where);
        const GraphValues::Ran ran =
            values_.run(op, inputs, path.empty() ? op.name : path + "." + op.name, pass, make);
        result.tensor = ran.result;
        result.trained = result.trained || ran.has_parameters;
        type.children.push_back({op.name, std::move(make), op.where});
        if (ran.in_place) check_in_place(s, op, *read.front());
      } catch (const std::runtime_error& error) {
        blame(s, op, read, error);
      }
    }
    type.forward.push_back(statement(StatementKind::assign, {local(op.name)}, std::move(run)));
  }

  /// An operator that writes over its input must be the only one that reads it.
  void check_in_place(const GraphScope& s, const GraphOperator& op, const Held& input) {
    const std::string& name = name_of(s, op.inputs.front());
    if (op.inputs.front() < 0) {
      faults_.error(op.where, quoted(op.name) + " cannot write over the input " + quoted(name));
    } else if (input.readers > 1) {
      faults_.error(op.where,
                    quoted(op.name) + " writes over " + quoted(name) + ", which others read too",
                    {"leave out 'in_place'"});
    } else if (const ClassSpec* maker =
                   s.operators[static_cast<std::size_t>(op.inputs.front())].kind;
               maker && maker->saves == "its result") {
      faults_.error(op.where,
                    quoted(op.name) + " writes over the result of " + quoted(name) +
                        ", which its backward needs",
                    {"leave out 'in_place'"});
    }
  }

  /// Names what the operator reads with its shapes: a join that does not go together names both.
  void blame(const GraphScope& s, const GraphOperator& op, const std::vector<Held*>& read,
             const std::runtime_error& error) {
    Location where = op.where;
    if (const auto* located = dynamic_cast<const ModelError*>(&error)) {
      const Location& at = located->where;
      if (at.known() && at.source == op.where.source) where = at;
    }
    std::vector<std::string> notes;
    std::string shapes;
    for (std::size_t i = 0; i < read.size() && i < 8; ++i) {
      shapes += (i > 0 ? ", " : "") + quoted(name_of(s, op.inputs[i])) + " gives " +
                shape_of(read[i]->tensor) + " " + dtype_name(read[i]->tensor.dtype());
    }
    if (dynamic_cast<const OverflowError*>(&error)) {
      notes.push_back("its sizes are too large to count in 63 bits");
    }
    notes.push_back(shapes);
    notes.push_back("for a batch of " + std::to_string(GraphValues::batch) + " and a sequence of " +
                    std::to_string(values_.sequence()));
    faults_.error(where,
                  quoted(op.name) + " of kind " + quoted(spec::kind_name(*op.kind)) +
                      " does not go: " + error.what(),
                  std::move(notes));
  }

  void loop(const GraphOperator& op, const std::vector<Held*>& read, Held& result,
            const std::string& path, ClassSpec& type) {
    const std::string own = path.empty() ? op.name : path + "." + op.name;
    const std::optional<std::int64_t> times = values_.times(op);
    Expr makers;
    makers.kind = ExprKind::list;
    makers.where = op.where;
    std::vector<Tensor> inputs;
    bool trained = false;
    bool whole = times.has_value();
    for (const Held* h : read) {
      inputs.push_back(h->tensor);
      trained = trained || h->trained;
      whole = whole && h->tensor;
    }
    ++loops_;
    const Pass* last = nullptr;
    std::int64_t each = 0;
    for (std::int64_t i = 0; whole && i < *times; ++i) {
      const std::int64_t before = operators_;
      last = pass(*op.body, inputs, own, i, last);
      if (operators_ > before) each = operators_ - before;
      if (operators_ == before) count(std::max<std::int64_t>(each, 1), op.where);
      makers.children.push_back(call(last->made.type, op.where));
      whole = !last->made.results.empty() && last->made.results.front();
      if (!whole) break;
      inputs.front() = last->made.results.front();
      trained = trained || last->made.trained.front();
    }
    --loops_;
    if (whole) result.tensor = inputs.front();
    result.trained = trained;
    type.children.push_back({op.name, std::move(makers), op.where});
  }

  /// A pass whose inputs are those of one before is that one again.
  const Pass* pass(const GraphScope& body, const std::vector<Tensor>& inputs,
                   const std::string& path, std::int64_t number, const Pass* last) {
    const auto alike = [&](const Tensor& a, const Tensor& b) {
      return a.shape() == b.shape() && a->stride == b->stride && a.dtype() == b.dtype();
    };
    if (last && !values_.uses_pass(body) &&
        std::equal(inputs.begin(), inputs.end(), last->inputs.begin(), alike)) {
      return last;
    }
    const std::string type = path + " of pass " + std::to_string(number);
    passes_.push_back({inputs, {}});
    Pass& made = passes_.back();
    made.made = scope(body, inputs, path + "." + std::to_string(number), number, type);
    return &made;
  }

  /// value = what it reads, which goes if nothing else reads it; for each module of the list:
  /// value = module(value, ...)
  void call_loop(const GraphScope& s, const GraphOperator& op, bool ends, ClassSpec& type) {
    const std::string module = local("module of " + op.name);
    const std::string& from = name_of(s, op.inputs.front());
    type.forward.push_back(statement(StatementKind::assign, {local(op.name)}, named(local(from))));
    if (ends) type.forward.push_back(statement(StatementKind::drop, {local(from)}, {}));
    Expr run = call(module, op.where);
    add_argument(run, named(local(op.name)));
    for (std::size_t i = 1; i < op.inputs.size(); ++i) {
      add_argument(run, named(local(name_of(s, op.inputs[i]))));
    }
    Statement each = statement(StatementKind::loop, {module}, named(op.name, op.where));
    each.body.push_back(statement(StatementKind::assign, {local(op.name)}, std::move(run)));
    type.forward.push_back(std::move(each));
  }

  void check_loss(const Made& made) {
    if (made.results.empty() || !made.results.front()) return;
    const Tensor& loss = made.results.front();
    const std::string& name = name_of(graph_.whole, graph_.whole.results.front());
    if (loss.rank() > 0 || !is_floating(loss.dtype())) {
      faults_.error(graph_.whole.where,
                    "the loss must be one number, " + quoted(name) + " gives " + shape_of(loss) +
                        " " + dtype_name(loss.dtype()),
                    {"cross_entropy, mean_squared_error, binary_cross_entropy, and mean and sum "
                     "over all dimensions give one"});
    } else if (!made.trained.front()) {
      faults_.error(graph_.whole.where,
                    "nothing is trained: no operator before " + quoted(name) + " has parameters");
    }
  }

  /// What a training loop hands to the network.
  ClassSpec batch() {
    ClassSpec type;
    type.name = "make_batch";
    type.where = graph_.where;
    Expr list;
    list.kind = ExprKind::list;
    for (const spec::GraphInput& input : graph_.inputs) {
      Expr make = call("empty", input.where);
      add_argument(make, values_.written(input.shape, -1));
      add_argument(make, input.dtype.kind == ExprKind::none ? named("input_dtype") : input.dtype);
      list.children.push_back(std::move(make));
    }
    list.children.resize(5);  // none
    type.forward.push_back(statement(StatementKind::give_back, {}, std::move(list)));
    return type;
  }

  const spec::GraphSpec& graph_;
  spec::FamilySpec& out_;
  GraphValues values_;
  Diagnostics& faults_;
  std::deque<Pass> passes_;
  std::int64_t operators_ = 0;
  int loops_ = 0;  // around what runs
};

}  // namespace

std::shared_ptr<const spec::FamilySpec> read_family_of(
    const spec::ModelSpec& model, const std::vector<std::string>& frameworks,
    const std::vector<std::string>& implementations) {
  const auto family = spec::read_family_of(model, frameworks, implementations);
  if ((family->own_batch || model.graph) && !family->asks_for_batch) {
    throw InputError(model.where,
                     "the program of " + join(frameworks) + " hands tokens to a model, " +
                         quoted(model.name) + " reads a batch of its own",
                     {"take the framework plain-pytorch"});
  }
  if (!model.graph) return family;
  auto translated = std::make_shared<spec::FamilySpec>(*family);
  Translator(model, *translated).run();
  return translated;
}

}  // namespace shardfit::model
