#pragma once
// The small language of model files: expressions over dimensions and tensors, and the statements of a
// module's forward. It has Python's evaluation order and lifetimes, because those decide what memory a
// program holds: a name keeps its value until it is bound again, deleted, or the function returns; the
// arguments of a call stay alive until it returns.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "spec/reader.h"

namespace shardfit::spec {

enum class ExprKind : std::uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  name,       // text
  call,       // text is the callee; children are the arguments, `names` of keyword ones
  binary,     // text is the operator; two children
  unary,      // "-" or "not"; one child
  choice,     // value if condition else other: children value, condition, other
  index,      // base[index]: two children
  list,       // [a, b] or a, b
  attribute,  // base.name: one child, text the name
};

struct Expr {
  ExprKind kind = ExprKind::none;
  std::string text;
  std::int64_t integer = 0;
  double real = 0;
  std::vector<Expr> children;
  std::vector<std::string> names;  // of a call's arguments; empty: by position
  Location where;
};

enum class StatementKind : std::uint8_t { assign, give_back, drop, evaluate, branch, loop, within };

struct Statement {
  StatementKind kind = StatementKind::evaluate;
  std::vector<std::string> targets;  // assign: names; drop: names; loop: one name
  Expr value;                        // assign, return, evaluate; condition; list looped over
  std::vector<Statement> body;       // then, do
  std::vector<Statement> otherwise;  // else
  Location where;
};

/// Parses an expression written in one YAML scalar; faults are reported with their column.
Expr parse_expression(const Node& scalar, Diagnostics& faults);
/// Parses a list of statements: text lines and maps {if, then, else}, {for, do}, {with, do}.
std::vector<Statement> parse_statements(const Node& list, Diagnostics& faults);

}  // namespace shardfit::spec
