#include "spec/graph_spec.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/name_table.h"
#include "spec/data_directory.h"
#include "spec/graph_order.h"

namespace shardfit::spec {
namespace {

using std::literals::operator""sv;  // compares lengths first

constexpr std::size_t most_inputs = 5;  // what a training loop hands to a model
constexpr const char* kind_prefix = "operator ";

/// An expression over numbers: a scalar, or a list of such.
Expr expression_of(const Node& node, Diagnostics& faults) {
  if (node.kind != Kind::list) return parse_expression(node, faults);
  Expr e;
  e.kind = ExprKind::list;
  e.where = node.where;
  for (const Node& child : node.children) e.children.push_back(expression_of(child, faults));
  return e;
}

bool is_name(const std::string& text) {
  const auto letter = [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
  };
  if (text.empty() || text.size() > 200 || !letter(text.front())) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return letter(c) || std::isdigit(static_cast<unsigned char>(c)) || c == '-';
  });
}

std::vector<std::string> nearest(const std::string& word, const std::vector<std::string>& names) {
  const std::string near = closest(word, names);
  if (near.empty()) return {};
  return {"did you mean '" + near + "'?"};
}

/// How an operator is called in messages.
std::string title(const Node& node) { return "operator " + quoted(node.key); }

/// The kinds by the names that people write.
class Kinds {
 public:
  explicit Kinds(const FamilySpec& family) : family_(family), numbers_(family.classes.size()) {
    for (std::size_t i = 0; i < family.classes.size(); ++i) {
      const std::string_view name = family.classes[i].name;
      if (!name.starts_with(kind_prefix)) continue;
      numbers_.add(name.substr(std::string_view(kind_prefix).size()), static_cast<std::int32_t>(i));
    }
  }

  /// The operator's kind; a fault where it is none.
  const ClassSpec* find(const Node& kind, const Node& op, Diagnostics& faults) const {
    if (kind.kind == Kind::string) {
      const auto number = numbers_.find(kind.text);
      if (number) return &family_.classes[static_cast<std::size_t>(*number)];
      const bool shown = faults.size() < Diagnostics::most_shown;
      std::vector<std::string> names;
      for (const ClassSpec& c : family_.classes) {
        if (shown && !kind_name(c).empty()) names.push_back(kind_name(c));
      }
      faults.error(kind.where, title(op) + ": unknown kind " + quoted(kind.text),
                   shown ? suggest(kind.text, names) : std::vector<std::string>{});
    } else if (kind.kind != Kind::faulty) {
      faults.error(kind.where, title(op) + ": expected a kind, found " + describe(kind));
    }
    return nullptr;
  }

 private:
  const FamilySpec& family_;
  NameTable numbers_;
};

/// The operators of one scope while they are read. Names are those of the file's tree, which stays
/// until all is read.
class ScopeReader {
 public:
  ScopeReader(const Kinds& kinds, ScopeReader* outer, Diagnostics& faults)
      : kinds_(kinds), outer_(outer), faults_(faults) {}

  GraphScope scope;

  void add_input(std::string_view name) {
    values_.add(name, -1 - static_cast<std::int32_t>(scope.inputs.size()));
    scope.inputs.emplace_back(name);
  }

  /// Names first, so that operators may stand in any order.
  void read(const Node& operators) {
    if (!as_map(operators, "'operators'", faults_)) return;
    values_.reserve(operators.children.size() + scope.inputs.size());
    scope.operators.resize(operators.children.size());
    for (std::size_t i = 0; i < operators.children.size(); ++i) {
      const Node& node = operators.children[i];
      if (!is_name(node.key)) {
        faults_.error(node.key_where, quoted(node.key) + " is no name for an operator",
                      {"a name is a letter, then letters, digits, '_' and '-'"});
      } else if (values_.add(node.key, static_cast<std::int32_t>(i)) < 0) {
        faults_.error(node.key_where, quoted(node.key) + " is the name of an input already");
      }
      scope.operators[i].name = node.key;
      scope.operators[i].where = node.key_where;
    }
    for (std::size_t i = 0; i < operators.children.size(); ++i) {
      current_ = i;
      read_operator(operators.children[i]);
    }
  }

  /// What a name stands for here; a value of a scope around becomes a further input.
  std::optional<std::int32_t> find(std::string_view name) {
    if (const auto number = values_.find(name)) return number;
    if (!outer_) return {};
    const auto around = outer_->find(name);
    if (!around) return {};
    outer_->scope.operators[outer_->current_].inputs.push_back(*around);
    add_input(name);
    return values_.find(name);
  }

  /// `what` gives the words of a message for what reads it.
  template <class What>
  std::optional<std::int32_t> find(const Node& name, const What& what) {
    if (name.kind != Kind::string) {
      if (name.kind != Kind::faulty) {
        faults_.error(name.where, what() + ": expected a name, found " + describe(name));
      }
      return {};
    }
    const auto found = find(name.text);
    if (!found) {
      const bool shown = faults_.size() < Diagnostics::most_shown;
      faults_.error(name.where, what() + ": no operator or input is named " + quoted(name.text),
                    shown ? nearest(name.text, all_names()) : std::vector<std::string>{});
    }
    return found;
  }

  void result(const Node& name, const std::string& what) {
    if (scope.results.empty()) scope.where = name.where;
    if (const auto value = find(name, [&] { return what; })) scope.results.push_back(*value);
  }

 private:
  std::vector<std::string> all_names() const {
    std::vector<std::string> names = outer_ ? outer_->all_names() : std::vector<std::string>{};
    for (const std::string_view name : values_.names()) names.emplace_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }

  void read_operator(const Node& node) {
    if (node.kind != Kind::map) {
      as_map(node, title(node), faults_);
      return;
    }
    const Node* kind = node.child("kind");
    if (!kind && node.child("repeat")) return read_loop(node);
    if (!kind) {
      faults_.error(node.key_where, title(node) + " lacks the key 'kind'",
                    {"a loop has 'repeat' in its place"});
      return;
    }
    const ClassSpec* type = kinds_.find(*kind, node, faults_);
    read_inputs(node, type);
    if (!type) return;
    scope.operators[current_].kind = type;
    read_fields(node, *type);
  }

  void read_inputs(const Node& node, const ClassSpec* type) {
    const Node* from = node.child("from");
    if (!from) {
      faults_.error(node.key_where, title(node) + " lacks the key 'from': what it reads");
      return;
    }
    const bool list = from->kind == Kind::list;
    const std::size_t count = list ? from->children.size() : 1;
    std::vector<std::int32_t>& read = scope.operators[current_].inputs;
    read.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Node& name = list ? from->children[i] : *from;
      if (const auto value = find(name, [&] { return title(node); })) read.push_back(*value);
    }
    if (type) check_count(node, *from, count, *type);
  }

  void check_count(const Node& node, const Node& from, std::size_t count, const ClassSpec& type) {
    std::size_t least = 0;
    for (const ArgumentSpec& input : type.inputs) least += input.fallback ? 0 : 1;
    std::size_t most = type.inputs.size();
    if (joins(type)) least = 2, most = std::max(least, count);
    if (count >= least && count <= most) return;
    std::string wanted = std::to_string(least) + (least == 1 ? " input" : " inputs");
    if (joins(type)) wanted = "2 inputs or more";
    if (!joins(type) && most > least) {
      wanted = std::to_string(least) + " to " + std::to_string(most) + " inputs";
    }
    faults_.error(from.where, title(node) + ": kind " + quoted(kind_name(type)) + " takes " +
                                  wanted + ", found " + std::to_string(count));
  }

  static bool is_field(const ClassSpec& type, const std::string& name) {
    return std::any_of(type.takes.begin(), type.takes.end(), [&](const ArgumentSpec& take) {
      return take.name == name && !is_inferred(take.name);
    });
  }
  static std::vector<std::string> fields_of(const ClassSpec& type) {
    std::vector<std::string> fields;
    for (const ArgumentSpec& take : type.takes) {
      if (!is_inferred(take.name)) fields.push_back(take.name);
    }
    return fields;
  }

  void read_fields(const Node& node, const ClassSpec& type) {
    for (const Node& field : node.children) {
      if (field.key == "kind"sv || field.key == "from"sv) continue;
      if (!is_field(type, field.key)) {
        const std::vector<std::string> known = fields_of(type);
        std::vector<std::string> notes = {"it has no fields"};
        if (!known.empty()) notes = suggest(field.key, known);
        faults_.error(field.key_where,
                      title(node) + ": kind " + quoted(kind_name(type)) + " has no field " +
                          quoted(field.key),
                      std::move(notes));
        continue;
      }
      Expr value = expression_of(field, faults_);
      scope.operators[current_].fields.emplace_back(field.key, std::move(value));
    }
    for (const ArgumentSpec& take : type.takes) {
      if (take.fallback || is_inferred(take.name) || node.child(take.name)) continue;
      faults_.error(node.key_where,
                    title(node) + " of kind " + quoted(kind_name(type)) + " lacks the field " +
                        quoted(take.name),
                    {"its fields: " + join(fields_of(type))});
    }
  }

  void read_loop(const Node& node) {
    const std::string what = title(node);
    MapView map(node, what, faults_);
    ScopeReader body(kinds_, this, faults_);
    body.scope.times = expression_of(*map.find("repeat"), faults_);
    if (const Node* from = map.require("from")) {
      const auto value = find(*from, [&] { return what; });
      if (value) scope.operators[current_].inputs.push_back(*value);
    }
    body.add_input(node.key);
    if (const Node* operators = map.require("operators")) body.read(*operators);
    if (const Node* result = map.require("result")) body.result(*result, "'result' of " + what);
    map.finish();
    sort_operators(body.scope, faults_);
    scope.operators[current_].body = std::make_shared<const GraphScope>(std::move(body.scope));
  }

  const Kinds& kinds_;
  ScopeReader* outer_;
  Diagnostics& faults_;
  std::size_t current_ = 0;
  NameTable values_;
};

void read_input(const Node& node, GraphSpec& graph, Diagnostics& faults) {
  GraphInput input;
  input.name = node.key;
  input.where = node.key_where;
  if (!is_name(node.key)) {
    faults.error(node.key_where, quoted(node.key) + " is no name for an input");
  }
  MapView map(node, "input " + quoted(node.key), faults);
  if (const Node* shape = map.require_list("shape")) input.shape = expression_of(*shape, faults);
  if (const Node* dtype = map.find("dtype")) input.dtype = parse_expression(*dtype, faults);
  map.finish();
  graph.inputs.push_back(std::move(input));
}

void read_head(MapView& map, GraphSpec& graph, Diagnostics& faults) {
  if (const auto name = map.string("graph")) graph.name = name->value;
  for (const char* key : {"source", "summary", "parameters"}) map.find(key);
  if (const Node* numbers = map.map("numbers")) {
    for (const Node& number : numbers->children) {
      const std::string& key = number.key;
      if (!is_name(key)) {
        faults.error(number.key_where, quoted(key) + " is no name for a number");
      } else if (key == "batch" || key == "sequence" || key == "pass") {
        faults.error(number.key_where, quoted(key) + " is no number of the graph",
                     {"it means the job's batch or sequence, or the pass of a loop"});
      }
      graph.numbers.push_back({number.key, expression_of(number, faults)});
    }
  }
  if (const Node* longest = map.find("longest-sequence")) {
    graph.longest_sequence = expression_of(*longest, faults);
  }
  const Node* inputs = map.require_map("inputs");
  if (!inputs) return;
  for (const Node& input : inputs->children) read_input(input, graph, faults);
  if (graph.inputs.empty()) faults.error(inputs->where, "a graph has at least one input");
  if (graph.inputs.size() > most_inputs) {
    faults.error(inputs->children[most_inputs].key_where,
                 "a graph has at most " + std::to_string(most_inputs) + " inputs, found " +
                     std::to_string(graph.inputs.size()));
  }
}

/// Operators that end in one number, for a graph that names no loss.
std::vector<std::string> losses(const GraphScope& scope) {
  std::vector<std::string> names;
  for (const GraphOperator& op : scope.operators) {
    const std::string kind = op.kind ? kind_name(*op.kind) : "";
    if (kind == "cross_entropy" || kind.ends_with("_error") || kind == "binary_cross_entropy") {
      names.push_back(op.name);
    }
  }
  if (names.size() > 5) names.resize(5);
  return names;
}

}  // namespace

std::string kind_name(const ClassSpec& kind) {
  const std::string prefix = kind_prefix;
  return kind.name.starts_with(prefix) ? kind.name.substr(prefix.size()) : "";
}

bool joins(const ClassSpec& kind) {
  return kind.inputs.size() == 1 && kind.inputs.front().name == "inputs"sv;
}

bool is_inferred(const std::string& take) {
  return take == "input_width"sv || take == "input_channels"sv;
}

FamilySpec read_graph_kinds() {
  return *read_family(data_directory() + "/graph/operators.yaml", {});
}

bool is_graph(const Node& root) {
  return root.kind == Kind::map && (root.child("operators") || root.child("graph"));
}

std::shared_ptr<const GraphSpec> read_graph(const Node& root) {
  auto graph = std::make_shared<GraphSpec>();
  graph->kinds = read_graph_kinds();
  graph->where = root.where;
  Diagnostics faults;
  MapView map(root, "the graph", faults);
  read_head(map, *graph, faults);
  const Kinds kinds(graph->kinds);
  ScopeReader reader(kinds, nullptr, faults);
  for (const GraphInput& input : graph->inputs) reader.add_input(input.name);
  if (const Node* operators = map.require("operators")) reader.read(*operators);
  if (const Node* loss = map.find("loss")) {
    reader.result(*loss, "'loss'");
  } else {
    std::vector<std::string> notes = {"loss: NAME names the operator whose number is trained down"};
    const std::vector<std::string> names = losses(reader.scope);
    if (!names.empty()) notes.push_back("it could be: " + join(names));
    faults.error(root.where, "the graph names no loss", notes);
  }
  if (const Node* outputs = map.list("outputs")) {
    for (const Node& output : outputs->children) reader.result(output, "'outputs'");
  }
  map.finish();
  sort_operators(reader.scope, faults);
  faults.throw_if_any();
  graph->whole = std::move(reader.scope);
  return graph;
}

Location place_of_operator(const GraphSpec& graph, const std::string& path) {
  const GraphScope* scope = &graph.whole;
  Location where = graph.where;
  for (std::size_t start = 0; scope && start < path.size();) {
    const std::size_t dot = std::min(path.find('.', start), path.size());
    const std::string name = path.substr(start, dot - start);
    start = dot + 1;
    const auto it = std::find_if(scope->operators.begin(), scope->operators.end(),
                                 [&](const GraphOperator& op) { return op.name == name; });
    if (it == scope->operators.end()) continue;  // the number of a pass
    where = it->where;
    scope = it->body.get();
  }
  return where;
}

}  // namespace shardfit::spec
