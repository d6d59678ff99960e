#include "model/blame.h"

#include <algorithm>
#include <cctype>

#include "base/format.h"

namespace shardfit::model {
namespace {

using spec::DimensionSpec;
using spec::Expr;
using spec::FamilySpec;
using spec::Kind;
using spec::ModelSpec;
using spec::Node;

constexpr int deepest = 8;  // defaults that use defaults

const Node* number_named(const std::string& name, const FamilySpec& family, const ModelSpec& model,
                         int depth);

/// The first number an expression uses; one that is zero before all others.
const Node* number_in(const Expr& expression, const FamilySpec& family, const ModelSpec& model,
                      int depth) {
  if (expression.kind == spec::ExprKind::name) {
    return number_named(expression.text, family, model, depth);
  }
  const Node* first = nullptr;
  for (const Expr& child : expression.children) {
    const Node* found = number_in(child, family, model, depth);
    if (found && found->text == "0") return found;
    if (!first) first = found;
  }
  return first;
}

const Node* number_named(const std::string& name, const FamilySpec& family, const ModelSpec& model,
                         int depth) {
  for (const DimensionSpec& d : family.dimensions) {
    if (d.name != name) continue;
    const Node* given = find_number(model.numbers, d);
    if (given && given->kind != Kind::null) return given;
    if (!d.fallback || depth >= deepest) return nullptr;
    return number_in(*d.fallback, family, model, depth + 1);
  }
  return nullptr;
}

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

void find_largest(const Node& node, const Node*& largest, std::int64_t& most) {
  if (node.kind == Kind::integer) {
    const auto value = parse_integer(node.text);
    if (value && *value > most) {
      most = *value;
      largest = &node;
    }
  }
  if (node.kind != Kind::map) return;
  for (const Node& child : node.children) {
    // What a file says of itself is no size.
    if (child.key.find("parameters") != std::string::npos || child.key.starts_with("_")) continue;
    find_largest(child, largest, most);
  }
}

}  // namespace

const Node* find_number(const Node& numbers, const DimensionSpec& d) {
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

const Node* number_in(const Expr& expression, const FamilySpec& family, const ModelSpec& model) {
  return number_in(expression, family, model, 0);
}

const Node* number_behind(const Location& expression, const std::string& message,
                          const FamilySpec& family, const ModelSpec& model) {
  for (const Node& number : model.numbers.children) {
    if (number.kind == Kind::string && message.find(quoted(number.text)) != std::string::npos) {
      return &number;
    }
  }
  if (!expression.known()) return nullptr;
  const std::string& text = expression.source->text;
  const std::size_t end = std::min(text.find('\n', expression.offset), text.size());
  for (std::size_t at = std::min(expression.offset, end); at < end;) {
    std::size_t to = at;
    while (to < end && in_word(text[to])) ++to;
    if (to > at) {
      const Node* found = number_named(text.substr(at, to - at), family, model, 0);
      if (found) return found;
    }
    at = std::max(to, at + 1);
  }
  return nullptr;
}

const Node* missing_size(const FamilySpec& family, const ModelSpec& model) {
  for (const DimensionSpec& d : family.dimensions) {
    const Node* given = d.fallback || d.may_be_none ? nullptr : find_number(model.numbers, d);
    if (given && given->text == "0") return given;
  }
  return nullptr;
}

const Node* absurd_number(const ModelSpec& model) {
  constexpr std::int64_t largest_model = 10'000'000;  // vocabularies stay below a million
  const Node* largest = nullptr;
  std::int64_t most = largest_model;
  find_largest(model.numbers, largest, most);
  return largest;
}

}  // namespace shardfit::model
