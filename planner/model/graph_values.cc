#include "model/graph_values.h"

#include <algorithm>
#include <bit>

#include "base/format.h"
#include "base/name_table.h"
#include "tensor/ops.h"

namespace shardfit::model {
namespace {

using spec::Expr;
using spec::ExprKind;
using spec::GraphOperator;

constexpr std::int64_t largest_number = std::int64_t{1} << 40;
constexpr std::int64_t most_passes = 250'000;

Expr number(std::int64_t n, const Location& where) {
  Expr e;
  e.kind = ExprKind::integer;
  e.integer = n;
  e.where = where;
  return e;
}

/// Words of the job that expressions of a graph may use.
Globals job_words(std::int64_t sequence) {
  Globals globals;
  globals.set("micro_batch", Value::of(GraphValues::batch));
  globals.set("sequence", Value::of(sequence));
  globals.set("decoder_sequence", Value::of(sequence));
  globals.set("batchnorm_in_eval_mode", Value::of_bool(false));
  globals.set("cudnn_disabled", Value::of_bool(false));
  return globals;
}

bool is_dtype(const std::string& word) {
  for (int d = 0; d <= static_cast<int>(DType::boolean); ++d) {
    if (word == dtype_name(static_cast<DType>(d))) return true;
  }
  return false;
}

bool names_pass(const Expr& e) {
  if (e.kind == ExprKind::name && e.text == "pass") return true;
  return std::any_of(e.children.begin(), e.children.end(), names_pass);
}

bool names_pass(const spec::GraphScope& scope) {
  return std::any_of(scope.operators.begin(), scope.operators.end(), [](const GraphOperator& op) {
    if (op.body) return names_pass(op.body->times) || names_pass(*op.body);
    return std::any_of(op.fields.begin(), op.fields.end(),
                       [](const auto& field) { return names_pass(field.second); });
  });
}

void check_size(const Value& value, const Expr& at) {
  if (value.kind == ValueKind::list) {
    for (const Value& one : *value.list) check_size(one, at);
  }
  if (value.kind == ValueKind::integer &&
      (value.integer > largest_number || value.integer < -largest_number)) {
    throw ModelError(at.where, "", "a number beyond " + format_count(largest_number));
  }
}

/// The dimension of the first input whose size a kind takes.
int inferred_dimension(const std::string& take, const Tensor& first) {
  return take == std::string_view("input_width") ? first.rank() - 1 : 1;
}

void write_key(std::int64_t number, std::string& key) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void write_key(const std::string& text, std::string& key) {
  key += text;
  key += '\0';
}

/// A field that is true or false where nothing is said takes nothing else; others never do.
void check_truth(const spec::ArgumentSpec& take, const Value& value, const Expr& at,
                 const std::string& path) {
  const bool wanted = take.fallback && take.fallback->kind == ExprKind::boolean;
  const bool found = value.kind == ValueKind::boolean;
  if (wanted == found) return;
  throw ModelError(
      at.where, path,
      quoted(take.name) + (wanted ? " must be true or false" : " cannot be true or false"));
}

void add_argument(Expr value, const std::string& name, Expr& call) {
  call.children.push_back(std::move(value));
  call.names.push_back(name);
}

/// What an expression says, wherever it stands.
void write_key(const Expr& e, std::int64_t pass, std::string& key) {
  key += static_cast<char>(e.kind);
  if (e.kind == ExprKind::integer || e.kind == ExprKind::boolean) return write_key(e.integer, key);
  if (e.kind == ExprKind::real) return write_key(std::bit_cast<std::int64_t>(e.real), key);
  write_key(e.text, key);
  if (e.kind == ExprKind::name && e.text == "pass") write_key(pass, key);
  write_key(static_cast<std::int64_t>(e.children.size()), key);
  for (const Expr& child : e.children) write_key(child, pass, key);
  for (const std::string& name : e.names) write_key(name, key);
}

/// The kind, its fields and the sizes it reads off its first input: equal where the constructor
/// call is.
void write_make_key(const GraphOperator& op, const std::vector<Tensor>& inputs, std::int64_t pass,
                    std::string& key) {
  write_key(std::bit_cast<std::int64_t>(op.kind), key);
  const Tensor& first = inputs.front();
  for (const spec::ArgumentSpec& take : op.kind->takes) {
    if (spec::is_inferred(take.name)) {
      write_key(first.rank() < 2 ? 0 : first.size(inferred_dimension(take.name, first)), key);
      continue;
    }
    for (const auto& [name, expression] : op.fields) {
      if (name == take.name) write_key(expression, pass, key);
    }
    key += ',';
  }
}

/// All that operators look at in a tensor without values.
void write_key(const Tensor& t, std::string& key) {
  key += static_cast<char>(t.dtype());
  key += static_cast<char>(t.rank());
  for (int dim = 0; dim < t.rank(); ++dim) {
    write_key(t.size(dim), key);
    write_key(t->stride[dim], key);
  }
}

}  // namespace

GraphValues::GraphValues(const spec::GraphSpec& graph, const spec::Node& numbers)
    : graph_(graph),
      globals_(job_words(64)),
      runtime_({}),
      library_(graph.kinds, globals_),
      machine_(runtime_, library_, globals_) {
  runtime_.module_id("");
  runtime_.grad_enabled = false;
  machine_.parameter_dtype = DType::f32;
  read_numbers(numbers);
  if (!graph.longest_sequence || !faults.empty()) return;
  const Value longest = checked(*graph.longest_sequence, "longest-sequence");
  if (longest.kind != ValueKind::integer || longest.integer < 1) {
    if (faults.empty()) {
      faults.error(graph.longest_sequence->where,
                   "'longest-sequence' must be a whole number of at least 1");
    }
    return;
  }
  sequence_ = longest.integer;
  globals_.set("sequence", Value::of(sequence_));
  globals_.set("decoder_sequence", Value::of(sequence_));
}

/// Each number may use those before it; what the model's file (or an override) gives wins.
void GraphValues::read_numbers(const spec::Node& numbers) {
  NameTable places(numbers.children.size());
  for (std::size_t i = 0; i < numbers.children.size(); ++i) {
    places.add(numbers.children[i].key, static_cast<std::int32_t>(i));
  }
  for (const spec::ConstantSpec& constant : graph_.numbers) {
    Expr expression = constant.value;
    const auto place = places.find(constant.name);
    const spec::Node* given = place ? &numbers.children[static_cast<std::size_t>(*place)] : nullptr;
    if (given && given->where.source != expression.where.source) {
      expression = parse_expression(*given, faults);
    }
    const Value value = checked(expression, constant.name);
    if (value.kind == ValueKind::integer) {
      numbers_[constant.name] = number(value.integer, expression.where);
    } else if (value.kind == ValueKind::real) {
      expression.kind = ExprKind::real;
      expression.real = value.real;
      expression.children.clear();
      numbers_[constant.name] = std::move(expression);
    } else {
      numbers_[constant.name] = number(1, expression.where);
      if (faults.empty()) {
        faults.error(expression.where, quoted(constant.name) + " must be a number");
      }
    }
  }
}

Value GraphValues::checked(const Expr& expression, const std::string& what) {
  try {
    return evaluate(expression, -1);
  } catch (const std::runtime_error& error) {
    faults.error(expression.where, quoted(what) + ": " + error.what());
    return {};
  }
}

void GraphValues::check_name(const Expr& name, std::int64_t pass) {
  if (faults.size() >= Diagnostics::most_shown) return;
  std::vector<std::string> known = {"batch", "sequence"};
  if (pass >= 0) known.emplace_back("pass");
  for (const auto& [number_name, value] : numbers_) known.push_back(number_name);
  std::vector<std::string> notes = suggest(name.text, known);
  notes.push_back("numbers of the graph stand under 'numbers'");
  faults.error(name.where, "unknown number " + quoted(name.text), notes);
}

Expr GraphValues::written(const Expr& e, std::int64_t pass) {
  if (e.kind == ExprKind::integer || e.kind == ExprKind::real) return e;
  if (e.kind == ExprKind::name) {
    if (e.text == "pass" && pass >= 0) return number(pass, e.where);
    const auto it = numbers_.find(e.text);
    if (it != numbers_.end()) {
      Expr value = it->second;
      value.where = e.where;
      return value;
    }
    Expr out = e;
    if (e.text == "batch") {
      out.text = "micro_batch";
    } else if (e.text != "sequence" && !is_dtype(e.text)) {
      check_name(e, pass);
      return number(1, e.where);
    }
    return out;
  }
  if (e.kind == ExprKind::call && e.text != "min" && e.text != "max" && e.text != "int") {
    faults.error(e.where, "expressions of a graph call min, max and int only");
    return number(1, e.where);
  }
  Expr out = e;
  for (Expr& child : out.children) child = written(child, pass);
  return out;
}

Value GraphValues::evaluate(const Expr& expression, std::int64_t pass) {
  if (expression.kind == ExprKind::integer) {
    const Value value = Value::of(expression.integer);
    check_size(value, expression);
    return value;
  }
  const Expr over_words = written(expression, pass);
  if (over_words.kind == ExprKind::integer) {
    const Value value = Value::of(over_words.integer);
    check_size(value, over_words);
    return value;
  }
  const Code code = bind_expression(over_words, globals_, &library_, texts_, faults);
  Value value = machine_.evaluate(code, nullptr, nullptr);
  check_size(value, over_words);
  return value;
}

Tensor GraphValues::input(const spec::GraphInput& input) {
  DType dtype = DType::f32;
  if (input.dtype.kind != ExprKind::none) {
    const Code code = bind_expression(input.dtype, globals_, nullptr, texts_, faults);
    if (code.value.kind == ValueKind::dtype) {
      dtype = code.value.dtype;
    } else if (faults.empty()) {
      faults.error(input.dtype.where, "the dtype of " + quoted(input.name) +
                                          " must be one of: fp64, fp32, bf16, fp16, int64, int32, "
                                          "int16, int8, uint8, bool");
    }
  }
  try {
    const Value shape = evaluate(input.shape, -1);
    if (!faults.empty()) return {};
    const tensor::Shape sizes = sizes_of(shape, "the shape");
    if (sizes.count() == 0) throw std::runtime_error("a size of 0");
    return runtime_.empty(sizes, dtype);
  } catch (const std::runtime_error& error) {
    faults.error(input.shape.where, "the shape of " + quoted(input.name) + ": " + error.what());
  }
  return {};
}

const GraphValues::Ran* GraphValues::run(const GraphOperator& op, const std::vector<Tensor>& inputs,
                                         const std::string& path, std::int64_t pass) {
  key_.clear();
  write_make_key(op, inputs, pass, key_);
  const std::size_t make_key = key_.size();
  for (const Tensor& input : inputs) write_key(input, key_);
  const auto known = ran_.find(key_);
  if (known != ran_.end()) return &known->second;
  const std::size_t before = faults.size();
  Made made = make(op, inputs, path, pass);
  if (faults.size() > before) return nullptr;  // names nobody knows
  const auto [number, fresh] =
      makes_.emplace(key_.substr(0, make_key), static_cast<std::uint32_t>(calls_.size()));
  if (fresh) calls_.push_back(std::move(made.call));
  Ran ran = build_and_run(op, inputs, path, std::move(made));
  ran.make = number->second;
  return &ran_.emplace(key_, std::move(ran)).first->second;
}

GraphValues::Made GraphValues::make(const GraphOperator& op, const std::vector<Tensor>& inputs,
                                    const std::string& path, std::int64_t pass) {
  const spec::ClassSpec& kind = *op.kind;
  Made made;
  made.call.kind = ExprKind::call;
  made.call.text = kind.name;
  made.call.where = op.where;
  made.takes.resize(kind.takes.size());
  made.call.children.reserve(kind.takes.size());
  made.call.names.reserve(kind.takes.size());
  for (std::size_t i = 0; i < kind.takes.size(); ++i) {
    const std::string& take = kind.takes[i].name;
    if (spec::is_inferred(take)) {
      const Tensor& first = inputs.front();
      if (first.rank() < 2) {
        throw ModelError(op.where, path, "its input needs two dimensions or more");
      }
      const std::int64_t size = first.size(inferred_dimension(take, first));
      made.takes[i] = Value::of(size);
      add_argument(number(size, op.where), take, made.call);
      continue;
    }
    for (const auto& [name, expression] : op.fields) {
      if (name != take) continue;
      made.takes[i] = evaluate(expression, pass);
      check_truth(kind.takes[i], made.takes[i], expression, path);
      add_argument(written(expression, pass), take, made.call);
      if (name == std::string_view("in_place")) made.in_place = made.takes[i].truth();
    }
  }
  return made;
}

namespace {

/// Parameters and buffers of a module and of those in it.
template <class Visit>
void for_each_tensor(const Module& module, const Visit& visit) {
  for (const Tensor& t : module.tensors) {
    if (t) visit(t);
  }
  for_each_child(module, [&](const Module& child) { for_each_tensor(child, visit); });
}

}  // namespace

GraphValues::Ran GraphValues::build_and_run(const GraphOperator& op,
                                            const std::vector<Tensor>& inputs,
                                            const std::string& path, Made made) {
  const spec::ClassSpec& kind = *op.kind;
  Ran ran;
  ran.in_place = made.in_place;
  const std::size_t modules = machine_.modules.size();
  const Module* module = machine_.build(*library_.find(kind.name), std::move(made.takes), path);
  for_each_tensor(*module, [&](const Tensor& t) {
    ran.has_parameters = ran.has_parameters || t->leaf_requires_grad;
    if (t.count() == 0) {
      throw ModelError(op.where, path, "it has a weight of " + tensor::shape_text(t.shape()));
    }
  });
  ValueList arguments;
  for (const Tensor& t : inputs) arguments.push_back(Value::of(t));
  if (spec::joins(kind)) arguments = {Value::of_list(std::move(arguments))};
  arguments.resize(kind.inputs.size());
  const Value result = machine_.call(*module, arguments.data(), arguments.size());
  if (result.kind != ValueKind::tensor) throw ModelError(op.where, path, "it gives no tensor");
  ran.result = result.tensor;
  if (ran.result.count() == 0) {
    throw ModelError(op.where, path, "it gives nothing: " + tensor::shape_text(ran.result.shape()));
  }
  while (machine_.modules.size() > modules) machine_.modules.pop_back();
  return ran;
}

std::optional<std::int64_t> GraphValues::times(const GraphOperator& loop) {
  const std::size_t known = faults.size();
  try {
    const Value value = evaluate(loop.body->times, -1);
    if (faults.size() > known) return {};
    if (value.kind == ValueKind::integer && value.integer >= 1 && value.integer <= most_passes) {
      return value.integer;
    }
    faults.error(loop.body->times.where, "'repeat' of " + quoted(loop.name) +
                                             ": expected a whole number from 1 to " +
                                             format_count(most_passes));
  } catch (const std::runtime_error& error) {
    faults.error(loop.body->times.where, "'repeat' of " + quoted(loop.name) + ": " + error.what());
  }
  return {};
}

bool GraphValues::uses_pass(const spec::GraphScope& scope) {
  const auto it = uses_pass_.find(&scope);
  if (it != uses_pass_.end()) return it->second;
  return uses_pass_[&scope] = names_pass(scope);
}

}  // namespace shardfit::model
