#include "model/dimensions.h"

#include <algorithm>

#include "model/blame.h"
#include "model/machine.h"

namespace shardfit::model {
namespace {

using spec::Kind;
using spec::Node;

constexpr std::int64_t largest_number = std::int64_t{1} << 40;

/// A whole number where a real one is usual.
Value real_of(const Node& node, const std::string& name, Diagnostics& faults) {
  return Value::of_real(spec::as_real(node, "'" + name + "'", {-1e300, 1e300}, faults).value_or(0));
}

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

/// What a dimension's default gives; none where it has no default, or one that cannot be worked
/// out.
Value default_of(const spec::DimensionSpec& d, const Globals& globals, Machine& machine) {
  if (!d.fallback) return {};
  std::deque<std::string> texts;
  Diagnostics ignored;
  const Code code = bind_expression(*d.fallback, globals, nullptr, texts, ignored);
  try {
    if (ignored.empty()) return machine.evaluate(code, nullptr, nullptr);
  } catch (const std::exception&) {
  }
  return {};
}

/// A value is of the kind of its default; a dimension every model must give is a whole number.
bool of_wanted_kind(const Node& given, const spec::DimensionSpec& d, const Globals& globals,
                    Machine& machine, Diagnostics& faults) {
  const Value usual = default_of(d, globals, machine);
  const bool rate = usual.kind == ValueKind::real;
  const char* wanted = nullptr;
  if (usual.kind == ValueKind::integer || (!d.fallback && !d.may_be_none)) {
    if (given.kind != Kind::integer) wanted = "a whole number";
  } else if (usual.kind == ValueKind::boolean) {
    if (given.kind != Kind::boolean) wanted = "true or false";
  } else if (rate) {
    if (given.kind != Kind::integer && given.kind != Kind::real) wanted = "a number";
  } else if (usual.kind == ValueKind::text) {
    if (given.kind != Kind::string) wanted = "text";
  }
  if (!wanted) return true;
  faults.error(given.where,
               "'" + given.key + "' must be " + wanted + ", found " + spec::describe(given));
  return false;
}

/// Rates of dropout lie from 0 to 1.
void check_rate(const Node& given, Diagnostics& faults) {
  spec::as_real(given, "'" + given.key + "', a rate of dropout,", {0, 1}, faults);
}

/// Where a fault of an expression over dimensions is shown: at a number of the model's file that it
/// uses.
Location place_of(const spec::Expr& expression, const spec::FamilySpec& family,
                  const spec::ModelSpec& model) {
  const Node* number = number_in(expression, family, model);
  return number ? number->where : model.numbers.where;
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
      if (!of_wanted_kind(*given, d, globals, machine, faults)) {
        globals.set(d.name, Value::of(1));
        continue;
      }
      const auto& rates = family.dropouts;
      if (std::find(rates.begin(), rates.end(), d.name) != rates.end()) check_rate(*given, faults);
      if (given->kind == Kind::integer && default_of(d, globals, machine).kind == ValueKind::real) {
        globals.set(d.name, real_of(*given, given->key, faults));
        continue;
      }
      globals.set(d.name, value_of(*given, given->key, globals, faults));
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
      faults.error(place_of(*d.fallback, family, model),
                   "'" + d.name + "' is not given and cannot be worked out: " + error.what());
      globals.set(d.name, Value::of(1));
    }
  }
  faults.throw_if_any();
  for (const spec::ConstantSpec& check : family.checks) {
    const Code code = bind_expression(check.value, globals, nullptr, texts, faults);
    try {
      if (!machine.evaluate(code, nullptr, nullptr).truth()) {
        faults.error(place_of(check.value, family, model), check.name);
      }
    } catch (const std::exception& error) {
      faults.error(place_of(check.value, family, model), check.name, {error.what()});
    }
  }
  faults.throw_if_any();
}

}  // namespace shardfit::model
