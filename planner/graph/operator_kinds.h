#pragma once
// The operator kinds and what autograd keeps for each: what `shardfit graph --kinds` and
// docs/operators.md print, and what the tests hold the operators to.

#include <span>
#include <string>

namespace shardfit::graph {

enum class Saves : unsigned char {
  nothing,   // no tensor of the data
  input,     // what it reads
  result,    // what it makes
  operands,  // each operand where another one wants a gradient
  mask,      // a mask of one byte an element
  several,   // as the row's words say
};

struct OperatorKind {
  const char* name;
  const char* summary;
  Saves saves;
  const char* saved;   // in words
  const char* source;  // a file of pytorch v2.13.0 below aten/src/ATen/native, or from the root
};

/// All kinds, in groups as docs/operators.md shows them.
std::span<const OperatorKind> operator_kinds();
const OperatorKind* find_operator_kind(const std::string& name);

}  // namespace shardfit::graph
