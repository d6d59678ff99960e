#pragma once
// What an expression of the model language gives: a number, a tensor, a list, a module.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace shardfit::model {

struct Module;
struct Value;

enum class ValueKind : std::uint8_t { none, boolean, integer, real, text, dtype, tensor, list, module };

using ValueList = std::vector<Value>;

struct Value {
  ValueKind kind = ValueKind::none;
  DType dtype = DType::f32;
  union {
    std::int64_t integer = 0;
    double real;
    const std::string* text;  // owned by the compiled model
    const Module* module;
  };
  tensor::Tensor tensor;
  std::shared_ptr<ValueList> list;

  Value() = default;
  static Value of(std::int64_t n) {
    Value v;
    v.kind = ValueKind::integer;
    v.integer = n;
    return v;
  }
  static Value of_bool(bool b) {
    Value v;
    v.kind = ValueKind::boolean;
    v.integer = b;
    return v;
  }
  static Value of_real(double r) {
    Value v;
    v.kind = ValueKind::real;
    v.real = r;
    return v;
  }
  static Value of_text(const std::string* t) {
    Value v;
    v.kind = ValueKind::text;
    v.text = t;
    return v;
  }
  static Value of_dtype(DType d) {
    Value v;
    v.kind = ValueKind::dtype;
    v.dtype = d;
    return v;
  }
  static Value of_module(const Module* m) {
    Value v;
    v.kind = ValueKind::module;
    v.module = m;
    return v;
  }
  static Value of(tensor::Tensor t) {
    Value v;
    if (t) {
      v.kind = ValueKind::tensor;
      v.tensor = std::move(t);
    }
    return v;
  }
  static Value of_list(ValueList values) {
    Value v;
    v.kind = ValueKind::list;
    v.list = std::make_shared<ValueList>(std::move(values));
    return v;
  }
  bool is_none() const { return kind == ValueKind::none; }
  bool is_number() const {
    return kind == ValueKind::integer || kind == ValueKind::real || kind == ValueKind::boolean;
  }
  double as_real() const {
    return kind == ValueKind::real ? real : static_cast<double>(integer);
  }
  bool truth() const {
    switch (kind) {
      case ValueKind::none: return false;
      case ValueKind::boolean:
      case ValueKind::integer: return integer != 0;
      case ValueKind::real: return real != 0;
      case ValueKind::list: return !list->empty();
      default: return true;
    }
  }
};

}  // namespace shardfit::model
