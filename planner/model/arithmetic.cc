// What values are, and what the language's operators do with them.

#include <cmath>

#include "base/units.h"
#include "model/equal.h"
#include "model/machine.h"
#include "tensor/ops.h"

namespace shardfit::model {

using tensor::Tensor;

const char* kind_text(ValueKind kind) {
  static const char* const names[] = {"none",     "true or false", "a whole number",
                                      "a number", "a text",        "a dtype",
                                      "a tensor", "a list",        "a module"};
  return names[static_cast<int>(kind)];
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case ValueKind::none:
      return true;
    case ValueKind::text:
      return *a.text == *b.text;
    case ValueKind::dtype:
      return a.dtype == b.dtype;
    case ValueKind::tensor:
      return a.tensor == b.tensor;
    default:
      return false;
  }
}

namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  std::int64_t q = a / b;
  if (a % b != 0 && (a < 0) != (b < 0)) --q;
  return q;
}

}  // namespace

const Tensor& tensor_of(const Value& v, const char* what) {
  if (v.kind != ValueKind::tensor) {
    throw std::runtime_error(std::string(what) + " must be a tensor, found " + kind_text(v.kind));
  }
  return v.tensor;
}

std::int64_t integer_of(const Value& v, const char* what) {
  if (v.kind != ValueKind::integer && v.kind != ValueKind::boolean) {
    throw std::runtime_error(std::string(what) + " must be a whole number, found " +
                             kind_text(v.kind));
  }
  return v.integer;
}

tensor::Shape shape_of(const Value& v, const char* what) {
  if (v.kind != ValueKind::list) {
    throw std::runtime_error(std::string(what) + " must be a list of sizes, found " +
                             kind_text(v.kind));
  }
  if (v.list->size() > tensor::max_dims) {
    throw std::runtime_error(std::string(what) + " has more than six dimensions");
  }
  tensor::Shape shape;
  for (const Value& n : *v.list) shape.push_back(integer_of(n, what));
  return shape;
}

tensor::Shape sizes_of(const Value& v, const char* what) {
  const tensor::Shape shape = shape_of(v, what);
  for (int i = 0; i < shape.rank; ++i) {
    if (shape[i] < 0) {
      throw std::runtime_error(std::string(what) + " has a size of " + std::to_string(shape[i]));
    }
  }
  return shape;
}

namespace {

Value tensor_arithmetic(BinaryOp op, const Value& a, const Value& b) {
  const bool both = a.kind == ValueKind::tensor && b.kind == ValueKind::tensor;
  const Tensor& t = a.kind == ValueKind::tensor ? a.tensor : b.tensor;
  const Value& other = a.kind == ValueKind::tensor ? b : a;
  if (!both && !other.is_number()) {
    throw std::runtime_error(std::string("cannot calculate with a tensor and ") +
                             kind_text(other.kind));
  }
  switch (op) {
    case BinaryOp::add:
      return Value::of(both ? add(a.tensor, b.tensor) : add_scalar(t));
    case BinaryOp::sub:
      if (both) return Value::of(sub(a.tensor, b.tensor));
      return Value::of(a.kind == ValueKind::tensor ? add_scalar(t) : tensor::neg(t));
    case BinaryOp::mul:
      return Value::of(both ? mul(a.tensor, b.tensor) : mul_scalar(t));
    case BinaryOp::div:
      if (both) return Value::of(div(a.tensor, b.tensor));
      // A number by a tensor: its reciprocal times the number (torch/_tensor.py, __rdiv__).
      if (a.kind != ValueKind::tensor) return Value::of(mul_scalar(tensor::reciprocal(t)));
      return Value::of(div_scalar(t));
    case BinaryOp::floor_div:
      if (both || b.kind == ValueKind::tensor) break;
      return Value::of(tensor::floor_divide(t));
    case BinaryOp::pow:
      if (a.kind == ValueKind::tensor) return Value::of(tensor::pow_scalar(t, b.as_real()));
      return Value::of(tensor::exponential(t));
    case BinaryOp::eq:
    case BinaryOp::ne:
    case BinaryOp::lt:
    case BinaryOp::le:
    case BinaryOp::gt:
    case BinaryOp::ge:
      return Value::of(both ? tensor::compare("compare", a.tensor, b.tensor)
                            : tensor::compare_scalar("compare", t));
    default:
      break;
  }
  throw std::runtime_error("this operator does not take tensors");
}

/// Python's int ** int for an exponent of at least 0.
std::int64_t whole_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power = checked_multiply(power, base);
    if (exponent > 1) base = checked_multiply(base, base);
  }
  return power;
}

}  // namespace

Value arithmetic(BinaryOp op, const Value& a, const Value& b) {
  if (a.is_none() || b.is_none()) {
    if (op == BinaryOp::eq) return Value::of_bool(a.is_none() && b.is_none());
    if (op == BinaryOp::ne) return Value::of_bool(a.is_none() != b.is_none());
  }
  if (a.kind == ValueKind::tensor || b.kind == ValueKind::tensor) {
    return tensor_arithmetic(op, a, b);
  }
  if (op == BinaryOp::eq) return Value::of_bool(equal(a, b));
  if (op == BinaryOp::ne) return Value::of_bool(!equal(a, b));
  if (op == BinaryOp::in) {
    if (b.kind != ValueKind::list) throw std::runtime_error("'in' needs a list on its right");
    for (const Value& item : *b.list) {
      if (equal(a, item)) return Value::of_bool(true);
    }
    return Value::of_bool(false);
  }
  if (op == BinaryOp::add && a.kind == ValueKind::list && b.kind == ValueKind::list) {
    ValueList joined = *a.list;
    joined.insert(joined.end(), b.list->begin(), b.list->end());
    return Value::of_list(std::move(joined));
  }
  if (!a.is_number() || !b.is_number()) {
    throw std::runtime_error(std::string("cannot calculate with ") + kind_text(a.kind) + " and " +
                             kind_text(b.kind));
  }
  const bool whole = a.kind != ValueKind::real && b.kind != ValueKind::real;
  if ((op == BinaryOp::div || op == BinaryOp::floor_div || op == BinaryOp::mod) &&
      b.as_real() == 0) {
    throw std::runtime_error("division by zero");
  }
  const double x = a.as_real();
  const double y = b.as_real();
  switch (op) {
    case BinaryOp::lt:
      return Value::of_bool(x < y);
    case BinaryOp::le:
      return Value::of_bool(x <= y);
    case BinaryOp::gt:
      return Value::of_bool(x > y);
    case BinaryOp::ge:
      return Value::of_bool(x >= y);
    case BinaryOp::div:
      return Value::of_real(x / y);
    case BinaryOp::pow:
      if (whole && y >= 0) return Value::of(whole_power(a.integer, b.integer));
      return Value::of_real(std::pow(x, y));
    default:
      break;
  }
  if (!whole) {
    switch (op) {
      case BinaryOp::add:
        return Value::of_real(x + y);
      case BinaryOp::sub:
        return Value::of_real(x - y);
      case BinaryOp::mul:
        return Value::of_real(x * y);
      case BinaryOp::floor_div:
        return Value::of_real(std::floor(x / y));
      default:
        return Value::of_real(std::fmod(x, y));
    }
  }
  switch (op) {
    case BinaryOp::add:
      return Value::of(checked_add(a.integer, b.integer));
    case BinaryOp::sub:
      return Value::of(checked_add(a.integer, -b.integer));
    case BinaryOp::mul:
      return Value::of(checked_multiply(a.integer, b.integer));
    case BinaryOp::floor_div:
      return Value::of(floor_div(a.integer, b.integer));
    default:
      return Value::of(a.integer - floor_div(a.integer, b.integer) * b.integer);
  }
}

}  // namespace shardfit::model
