#pragma once
// Element-wise operators, for kernels, references and reports.

namespace shardfit::calibrate {

/// Of a and b, each in (-1, 1): where a formula needs it they are moved away from its edge.
enum class Op {
  copy,
  add,
  sub,
  mul,
  div,      // a / (1.5 + b)
  lerp,     // a + 0.1 (b - a)
  addcmul,  // a + 0.5 b b
  addcdiv,  // a + 0.5 b / (1.5 + a)
  neg,
  sin,
  cos,
  tanh,
  sqrt,        // of |a|
  rsqrt,       // of |a| + 0.1
  reciprocal,  // of 1.5 + a
  square,
  silu,
  gelu,
  relu,
  exp
};

inline const char* op_name(Op op) {
  constexpr const char* names[] = {
      "copy", "add",  "sub",  "mul",   "div",        "lerp",   "addcmul", "addcdiv", "neg",  "sin",
      "cos",  "tanh", "sqrt", "rsqrt", "reciprocal", "square", "silu",    "gelu",    "relu", "exp"};
  return names[static_cast<int>(op)];
}

}  // namespace shardfit::calibrate
