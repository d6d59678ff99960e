#include "model/dimensions.h"

#include "model/machine.h"

namespace shardfit::model {
namespace {

using spec::Kind;
using spec::Node;

constexpr std::int64_t largest_number = std::int64_t{1} << 40;

Value value_of(const Node& node, const std::string& name, Globals& globals, Diagnostics& faults) {
  switch (node.kind) {
    case Kind::boolean:
      return Value::of_bool(node.text == "true" || node.text == "True");
    case Kind::integer: {
      const auto n = spec::as_integer(node, "'" + name + "'", {0, largest_number}, faults);
      return Value::of(n.value_or(0));
    }
    case Kind::real: {
      const auto r = spec::as_real(node, "'" + name + "'", {-1e300, 1e300}, faults);
      return Value::of_real(r.value_or(0));
    }
    case Kind::string:
      globals.texts.push_back(node.text);
      return Value::of_text(&globals.texts.back());
    case Kind::list: {
      ValueList items;
      for (const Node& child : node.children)
        items.push_back(value_of(child, name, globals, faults));
      return Value::of_list(std::move(items));
    }
    default:
      return {};
  }
}

/// The value under one of the keys a dimension may stand under; keys with dots go into maps.
const Node* find_number(const Node& numbers, const spec::DimensionSpec& d) {
  if (d.from.empty()) return numbers.child(d.name);
  for (const std::string& path : d.from) {
    const Node* at = &numbers;
    std::size_t start = 0;
    while (at && start <= path.size()) {
      const std::size_t dot = std::min(path.find('.', start), path.size());
      at = at->kind == Kind::map ? at->child(path.substr(start, dot - start)) : nullptr;
      start = dot + 1;
    }
    if (at && at->kind != Kind::null) return at;
  }
  return nullptr;
}

/// A dimension every model must give is a whole number, and so is one whose default is.
bool whole_number_wanted(const spec::DimensionSpec& d, const Globals& globals, Machine& machine) {
  if (!d.fallback) return !d.may_be_none;
  std::deque<std::string> texts;
  Diagnostics ignored;
  const Code code = bind_expression(*d.fallback, globals, nullptr, texts, ignored);
  try {
    return ignored.empty() && machine.evaluate(code, nullptr, nullptr).kind == ValueKind::integer;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void set_dimensions(const spec::FamilySpec& family, const spec::ModelSpec& model,
                    Globals& globals) {
  Diagnostics faults;
  std::deque<std::string>& texts = globals.texts;
  tensor::Runtime runtime({});
  const spec::FamilySpec empty_family;
  Library library(empty_family, globals);
  Machine machine(runtime, library, globals);
  globals.set_text("model_type", model.model_type);
  globals.set_text("family", family.name);
  for (const spec::DimensionSpec& d : family.dimensions) {
    const Node* given = find_number(model.numbers, d);
    if (given && given->kind != Kind::null) {
      if (given->kind == Kind::map) {  // names by number (id2label): how many there are
        globals.set(d.name, Value::of(static_cast<std::int64_t>(given->children.size())));
        continue;
      }
      if (whole_number_wanted(d, globals, machine) && given->kind != Kind::integer) {
        faults.error(given->where,
                     "'" + d.name + "' must be a whole number, found " + spec::describe(*given));
        globals.set(d.name, Value::of(1));
        continue;
      }
      globals.set(d.name, value_of(*given, d.name, globals, faults));
      continue;
    }
    if (given && d.may_be_none) {
      globals.set(d.name, {});
      continue;
    }
    if (!d.fallback) {
      faults.error(model.numbers.where, "the family '" + family.name + "' needs '" + d.name + "'",
                   {"add '" + d.name + "' to the model's file"});
      globals.set(d.name, Value::of(1));
      continue;
    }
    const Code code = bind_expression(*d.fallback, globals, nullptr, texts, faults);
    try {
      globals.set(d.name, machine.evaluate(code, nullptr, nullptr));
    } catch (const std::exception& error) {
      faults.error(d.where, std::string("default of '") + d.name + "': " + error.what());
      globals.set(d.name, Value::of(1));
    }
  }
  faults.throw_if_any();
  for (const spec::ConstantSpec& check : family.checks) {
    const Code code = bind_expression(check.value, globals, nullptr, texts, faults);
    try {
      if (!machine.evaluate(code, nullptr, nullptr).truth()) {
        faults.error(model.numbers.where, check.name);
      }
    } catch (const std::exception& error) {
      faults.error(model.numbers.where, check.name, {error.what()});
    }
  }
  faults.throw_if_any();
}

}  // namespace shardfit::model
