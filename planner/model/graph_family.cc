#include "model/graph_family.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

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
using spec::Wiring;

constexpr std::int64_t most_operators = 250'000;  // with loops unrolled
constexpr const char* class_of_whole = "the graph";

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

void add_argument(Expr& call_of, Expr value) {
  call_of.children.push_back(std::move(value));
  call_of.names.emplace_back();
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
    const Made made = scope(graph_.whole, inputs, "", -1, class_of_whole);
    check_loss(made);
    faults_.throw_if_any();
    out_.classes.push_back(batch());
    out_.heads = {{"graph", class_of_whole}};
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
    std::int32_t last = -1;  // the last operator that reads it
  };
  struct Pass {
    std::vector<Tensor> inputs;
    Made made;
  };

  /// The class of a scope while it is written.
  struct Network {
    ClassSpec type;
    std::shared_ptr<Wiring> wiring = std::make_shared<Wiring>();
    std::unordered_map<std::uint32_t, std::uint32_t> makes;  // of the values' numbers
    std::unordered_map<std::string, std::uint32_t> classes;  // makes of passes
  };

  /// Its number among the values of the scope, inputs first.
  static std::uint32_t place_of(const GraphScope& s, std::int32_t number) {
    return number < 0
               ? static_cast<std::uint32_t>(-1 - number)
               : static_cast<std::uint32_t>(s.inputs.size()) + static_cast<std::uint32_t>(number);
  }
  static Held& value(std::vector<Held>& held, const GraphScope& s, std::int32_t number) {
    return held[place_of(s, number)];
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
        h.last = static_cast<std::int32_t>(i);
      }
    }
    for (const std::int32_t result : s.results) {
      Held& h = value(held, s, result);
      h.last = static_cast<std::int32_t>(s.operators.size());
    }
    return held;
  }

  /// The class of a scope for these inputs; `pass` counts the passes of a loop.
  Made scope(const GraphScope& s, const std::vector<Tensor>& inputs, const std::string& path,
             std::int64_t pass, const std::string& type_name) {
    Network network;
    network.type.name = type_name;
    network.type.where = s.where;
    network.type.recompute_unit = !path.empty() && loops_ == 1;
    for (const std::string& input : s.inputs) network.type.inputs.push_back({local(input), {}});
    network.wiring->parts.reserve(s.operators.size());
    std::vector<Held> held = held_of(s, inputs);
    std::vector<Held*> read;
    for (std::size_t i = 0; i < s.operators.size(); ++i) {
      const GraphOperator& op = s.operators[i];
      Held& result = held[s.inputs.size() + i];
      read.clear();
      for (const std::int32_t input : op.inputs) read.push_back(&value(held, s, input));
      Wiring::Part& part = begin_part(s, op, network);
      if (op.body) {
        loop(op, read, result, path, part, network);
      } else if (const GraphValues::Ran* ran =
                     one(s, op, read, result, path, pass, part, network)) {
        if (ran->in_place) check_in_place(s, static_cast<std::int32_t>(i), *read.front());
      }
      drop(op, read, static_cast<std::int32_t>(i), part, *network.wiring);
    }
    Made made{type_name, {}, {}};
    for (const std::int32_t result : s.results) {
      const Held& h = value(held, s, result);
      made.results.push_back(h.tensor);
      made.trained.push_back(h.trained);
      network.wiring->results.push_back(place_of(s, result));
    }
    network.wiring->one_result = !path.empty();
    network.type.wiring = std::move(network.wiring);
    out_.classes.push_back(std::move(network.type));
    return made;
  }

  static Wiring::Part& begin_part(const GraphScope& s, const GraphOperator& op, Network& network) {
    Wiring& wiring = *network.wiring;
    Wiring::Part& part = wiring.parts.emplace_back();
    part.name = op.name;
    part.first = static_cast<std::uint32_t>(wiring.reads.size());
    part.reads = static_cast<std::uint32_t>(op.inputs.size());
    for (const std::int32_t input : op.inputs) wiring.reads.push_back({place_of(s, input)});
    return part;
  }

  /// Whether a loop reads a value only to begin with.
  static bool goes_into_loop(const GraphOperator& op, std::int32_t input) {
    return op.inputs.front() == input && std::count(op.inputs.begin(), op.inputs.end(), input) == 1;
  }

  /// Values that nothing reads any more go after the operator that was the last to do so; what only
  /// goes into a loop, before its first pass.
  static void drop(const GraphOperator& op, const std::vector<Held*>& read, std::int32_t at,
                   const Wiring::Part& part, Wiring& wiring) {
    for (std::size_t i = 0; i < read.size(); ++i) {
      Held& h = *read[i];
      if (h.last != at) continue;
      h.tensor.reset();
      h.last = -1;
      const bool before = op.body && goes_into_loop(op, op.inputs[i]);
      wiring.reads[part.first + i].goes = before ? Wiring::Goes::before : Wiring::Goes::after;
    }
  }

  void count(std::int64_t more, const Location& where) {
    operators_ += more;
    if (operators_ <= most_operators) return;
    faults_.error(where, "more than " + format_count(most_operators) + " operators with this one");
    faults_.throw_if_any();
  }

  /// Null where it could not run.
  const GraphValues::Ran* one(const GraphScope& s, const GraphOperator& op,
                              const std::vector<Held*>& read, Held& result,
                              const std::string& path, std::int64_t pass, Wiring::Part& part,
                              Network& network) {
    count(1, op.where);
    part.joined = spec::joins(*op.kind);
    inputs_.clear();
    bool whole = true;
    for (const Held* h : read) {
      inputs_.push_back(h->tensor);
      whole = whole && h->tensor;
      result.trained = result.trained || h->trained;
    }
    if (!whole) return nullptr;
    try {
      const GraphValues::Ran* ran =
          values_.run(op, inputs_, path.empty() ? op.name : path + "." + op.name, pass);
      if (!ran) return nullptr;
      result.tensor = ran->result;
      result.trained = result.trained || ran->has_parameters;
      Wiring& wiring = *network.wiring;
      const auto [make, fresh] =
          network.makes.emplace(ran->make, static_cast<std::uint32_t>(wiring.makes.size()));
      if (fresh) wiring.makes.push_back(values_.call(ran->make));
      part.make = make->second;
      return ran;
    } catch (const std::runtime_error& error) {
      blame(s, op, read, error);
      return nullptr;
    }
  }

  /// Nothing may read what an operator writes over behind it. What others keep of it, under another
  /// name too, depends on the job and is seen when its operators run (graph/trace.h).
  void check_in_place(const GraphScope& s, std::int32_t at, const Held& input) {
    const GraphOperator& op = s.operators[static_cast<std::size_t>(at)];
    const std::int32_t number = op.inputs.front();
    const std::string& name = name_of(s, number);
    if (number < 0) {
      faults_.error(op.where, quoted(op.name) + " cannot write over the input " + quoted(name));
    } else if (input.last > at) {
      faults_.error(op.where,
                    quoted(op.name) + " writes over " + quoted(name) + ", which others read too",
                    {"leave out 'in_place'"});
    } else if (const ClassSpec* maker = s.operators[static_cast<std::size_t>(number)].kind;
               maker && maker->saves == "its result" && input.trained) {
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
            const std::string& path, Wiring::Part& part, Network& network) {
    const std::string own = path.empty() ? op.name : path + "." + op.name;
    const std::optional<std::int64_t> times = values_.times(op);
    Wiring& wiring = *network.wiring;
    part.loop = true;
    part.make = static_cast<std::uint32_t>(wiring.passes.size());
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
      add_pass(last->made.type, op, network);
      whole = !last->made.results.empty() && last->made.results.front();
      if (!whole) break;
      inputs.front() = last->made.results.front();
      trained = trained || last->made.trained.front();
    }
    --loops_;
    part.passes = static_cast<std::uint32_t>(wiring.passes.size()) - part.make;
    if (whole) result.tensor = inputs.front();
    result.trained = trained;
  }

  static void add_pass(const std::string& type, const GraphOperator& op, Network& network) {
    Wiring& wiring = *network.wiring;
    const auto [make, fresh] =
        network.classes.emplace(type, static_cast<std::uint32_t>(wiring.makes.size()));
    if (fresh) wiring.makes.push_back(call(type, op.where));
    wiring.passes.push_back(make->second);
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
    spec::Statement give;
    give.kind = spec::StatementKind::give_back;
    give.value = std::move(list);
    type.forward.push_back(std::move(give));
    return type;
  }

  const spec::GraphSpec& graph_;
  spec::FamilySpec& out_;
  GraphValues values_;
  Diagnostics& faults_;
  std::deque<Pass> passes_;
  std::vector<Tensor> inputs_;  // of the operator that runs
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
