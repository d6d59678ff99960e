#include "model/machine.h"

#include <cmath>
#include <set>

#include "base/units.h"
#include "tensor/ops.h"

namespace shardfit::model {

using spec::StatementKind;
using tensor::Tensor;

namespace {

[[noreturn]] void fail(const Code& code, const Module* self, const std::string& message) {
  throw ModelError(code.source ? code.source->where : Location{}, self ? self->path : "", message);
}

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

Value Machine::tensor_arithmetic(BinaryOp op, const Value& a, const Value& b) {
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

Value Machine::arithmetic(const Code& code, const Value& a, const Value& b, const Module* self) {
  const BinaryOp op = code.binary;
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
    if (b.kind != ValueKind::list) fail(code, self, "'in' needs a list on its right");
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
    fail(code, self,
         std::string("cannot calculate with ") + kind_text(a.kind) + " and " + kind_text(b.kind));
  }
  const bool whole = a.kind != ValueKind::real && b.kind != ValueKind::real;
  if ((op == BinaryOp::div || op == BinaryOp::floor_div || op == BinaryOp::mod) &&
      b.as_real() == 0) {
    fail(code, self, "division by zero");
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

ValueList Machine::arguments_of(const Code& code, std::size_t first, std::size_t count,
                                const Module* self, Value* locals) {
  ValueList arguments(count);
  for (std::size_t i = first; i < code.children.size(); ++i) {
    const auto place = static_cast<std::size_t>(code.places[i - first]);
    arguments[place] = evaluate(code.children[i], self, locals);
  }
  return arguments;
}

Value* ValueStack::take(std::size_t count) {
  while (at_ < pieces_.size() && pieces_[at_].size - pieces_[at_].used < count) ++at_;
  if (at_ == pieces_.size()) {
    if (at_ > 10000) throw std::runtime_error("calls nested too deeply");
    const std::size_t size = std::max(piece, count);
    pieces_.push_back({std::make_unique<Value[]>(size), size, 0});
  }
  Value* values = pieces_[at_].values.get() + pieces_[at_].used;
  pieces_[at_].used += count;
  return values;
}

void ValueStack::give(Value* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = Value();
  pieces_[at_].used -= count;
  while (at_ > 0 && pieces_[at_].used == 0) --at_;
}

void Machine::fill_defaults(const CompiledClass& type, Value* arguments, const Module* self) {
  for (std::size_t i = 0; i < type.input_defaults.size(); ++i) {
    const Code& fallback = type.input_defaults[i];
    if (arguments[i].is_none() && (fallback.op != Op::constant || !fallback.value.is_none())) {
      arguments[i] = evaluate(fallback, self, nullptr);
    }
  }
}

Value Machine::call_value(const Code& code, const Module* self, Value* locals) {
  const Value callee = evaluate(code.children[0], self, locals);
  if (callee.kind != ValueKind::module) {
    fail(code, self, std::string("only a module can be called, found ") + kind_text(callee.kind));
  }
  const CompiledClass& type = *callee.module->type;
  const std::size_t count = type.input_defaults.size();
  Frame arguments(stack_, count);
  std::size_t position = 0;
  for (std::size_t i = 1; i < code.children.size(); ++i) {
    std::size_t place = position;
    const std::string& keyword = code.keywords[i - 1];
    if (keyword.empty()) {
      ++position;
    } else {
      place = 0;
      while (place < count && type.locals[place] != keyword) ++place;
    }
    if (place >= count) {
      fail(code, self,
           "module '" + callee.module->path + "' has no such argument" +
               (keyword.empty() ? "" : " '" + keyword + "'"));
    }
    arguments[place] = evaluate(code.children[i], self, locals);
  }
  // An adapter calls the module it wraps.
  if (self && callee.module->replaced_by == self) {
    return forward(*callee.module, arguments.data(), count);
  }
  return call(*callee.module, arguments.data(), count);
}

Value Machine::evaluate(const Code& code, const Module* self, Value* locals) {
  try {
    switch (code.op) {
      case Op::constant:
        return code.value;
      case Op::local:
        return locals[code.a];
      case Op::child:
        return self->children[static_cast<std::size_t>(code.a)];
      case Op::parameter:
        return Value::of(self->tensors[static_cast<std::size_t>(code.a)]);
      case Op::own_constant:
        return self->constants[static_cast<std::size_t>(code.a)];
      case Op::global:
        return code.a < 0 ? Value::of(repeat_index_)
                          : globals.values[static_cast<std::size_t>(code.a)];
      case Op::call_builtin: {
        Frame arguments(stack_, static_cast<std::size_t>(code.a));
        for (std::size_t i = 0; i < code.children.size(); ++i) {
          arguments[static_cast<std::size_t>(code.places[i])] =
              evaluate(code.children[i], self, locals);
        }
        if (!code.unit || !hooks || !self) return code.builtin(*this, arguments.data());
        hooks->before_unit(*self, &code, arguments[0]);
        Value result = code.builtin(*this, arguments.data());
        hooks->after_unit(*self, &code, result);
        return result;
      }
      case Op::call_class:
        return call_function(code, self, locals);
      case Op::call_value:
        return call_value(code, self, locals);
      case Op::binary: {
        if (code.binary == BinaryOp::both || code.binary == BinaryOp::either) {
          Value left = evaluate(code.children[0], self, locals);
          if (left.truth() == (code.binary == BinaryOp::either)) return left;
          return evaluate(code.children[1], self, locals);
        }
        const Value left = evaluate(code.children[0], self, locals);
        const Value right = evaluate(code.children[1], self, locals);
        return arithmetic(code, left, right, self);
      }
      case Op::unary: {
        const Value v = evaluate(code.children[0], self, locals);
        if (code.a == 1) return Value::of_bool(!v.truth());
        if (v.kind == ValueKind::tensor) return Value::of(tensor::neg(v.tensor));
        if (v.kind == ValueKind::real) return Value::of_real(-v.real);
        return Value::of(-integer_of(v, "the operand of '-'"));
      }
      case Op::choice:
        return evaluate(code.children[1], self, locals).truth()
                   ? evaluate(code.children[0], self, locals)
                   : evaluate(code.children[2], self, locals);
      case Op::index: {
        const Value base = evaluate(code.children[0], self, locals);
        const std::int64_t i = integer_of(evaluate(code.children[1], self, locals), "an index");
        if (base.kind != ValueKind::list) {
          fail(code, self, std::string("only a list has an index, found ") + kind_text(base.kind));
        }
        const auto n = static_cast<std::int64_t>(base.list->size());
        if (i < -n || i >= n)
          fail(code, self, "index " + std::to_string(i) + " of " + std::to_string(n));
        return (*base.list)[static_cast<std::size_t>(i < 0 ? i + n : i)];
      }
      case Op::list: {
        ValueList items;
        items.reserve(code.children.size());
        for (const Code& child : code.children) items.push_back(evaluate(child, self, locals));
        return Value::of_list(std::move(items));
      }
      case Op::attribute: {
        const Value base = evaluate(code.children[0], self, locals);
        if (base.kind != ValueKind::module) fail(code, self, "only a module has parts");
        const spec::ClassSpec& s = *base.module->type->spec;
        for (std::size_t i = 0; i < s.children.size(); ++i) {
          if (s.children[i].name == *code.value.text) return base.module->children[i];
        }
        for (std::size_t i = 0; i < s.parameters.size(); ++i) {
          if (s.parameters[i].name != *code.value.text) continue;
          if (hooks && self) hooks->before_read(*self, base.module->tensors[i]);
          return Value::of(base.module->tensors[i]);
        }
        for (std::size_t i = 0; i < s.constants.size(); ++i) {
          if (s.constants[i].name == *code.value.text) {
            return base.module->constants[s.takes.size() + i];
          }
        }
        fail(code, self,
             "module '" + base.module->path + "' has no part '" + *code.value.text + "'");
      }
    }
  } catch (const ModelError&) {
    throw;
  } catch (const OverflowError&) {
    throw;  // a number of the job or the model, not this expression
  } catch (const std::runtime_error& error) {
    fail(code, self, error.what());
  }
  return {};
}

bool Machine::run(const std::vector<Step>& steps, const Module* self, Value* locals,
                  Value& result) {
  for (const Step& step : steps) {
    switch (step.kind) {
      case StatementKind::assign: {
        Value value = evaluate(step.value, self, locals);
        if (step.slots.size() == 1) {
          std::swap(locals[step.slots[0]], value);
          break;
        }
        if (value.kind != ValueKind::list || value.list->size() != step.slots.size()) {
          fail(step.value, self, "expected " + std::to_string(step.slots.size()) + " values");
        }
        for (std::size_t i = 0; i < step.slots.size(); ++i) {
          locals[step.slots[i]] = (*value.list)[i];
        }
        break;
      }
      case StatementKind::give_back:
        result = evaluate(step.value, self, locals);
        return true;
      case StatementKind::drop:
        for (int slot : step.slots) locals[slot] = Value();
        break;
      case StatementKind::evaluate:
        evaluate(step.value, self, locals);
        break;
      case StatementKind::branch:
        if (run(evaluate(step.value, self, locals).truth() ? step.body : step.otherwise, self,
                locals, result)) {
          return true;
        }
        break;
      case StatementKind::loop: {
        const Value over = evaluate(step.value, self, locals);
        if (over.kind != ValueKind::list) fail(step.value, self, "'for' needs a list");
        for (std::size_t i = 0; i < over.list->size(); ++i) {
          locals[step.slots[0]] = (*over.list)[i];
          if (run(step.body, self, locals, result)) return true;
        }
        break;
      }
      case StatementKind::within: {
        const Value what = evaluate(step.value, self, locals);
        bool returned = false;
        const auto body = [&] { returned = run(step.body, self, locals, result); };
        if (!within || !within(what, body)) fail(step.value, self, "unknown 'with'");
        if (returned) return true;
        break;
      }
    }
  }
  return false;
}

Value Machine::call_function(const Code& code, const Module* self, Value* locals) {
  const CompiledClass& type = *code.callee;
  const Nested nested(*this, type, self ? self->path : "");
  Frame own(stack_, static_cast<std::size_t>(type.slots));
  for (std::size_t i = 0; i < code.children.size(); ++i) {
    own[static_cast<std::size_t>(code.places[i])] = evaluate(code.children[i], self, locals);
  }
  fill_defaults(type, own.data(), nullptr);
  const bool unit = code.unit && hooks && self;
  if (unit) hooks->before_unit(*self, &code, own[0]);
  Value result;
  run(type.forward, nullptr, own.data(), result);
  if (unit) hooks->after_unit(*self, &code, result);
  return result;
}

template <class Run>
Value Machine::hooked(const Module& module, const Value* arguments, std::size_t count,
                      const Run& run_it) {
  Frame own(stack_, count);
  for (std::size_t i = 0; i < count; ++i) own[i] = arguments[i];
  hooks->before_forward(module, own.data(), count);
  Value result = run_it(own.data());
  hooks->after_forward(module, result);
  return result;
}

Value Machine::forward(const Module& module, const Value* arguments, std::size_t count) {
  if (!hooks || !module.hooked || hooks_around_recompute) {
    return plain_forward(module, arguments, count);
  }
  return hooked(module, arguments, count,
                [&](Value* own) { return plain_forward(module, own, count); });
}

Value Machine::plain_forward(const Module& module, const Value* arguments, std::size_t count) {
  const CompiledClass& type = *module.type;
  const Nested nested(*this, type, module.path);
  const tensor::Scoped<std::uint32_t> label(runtime.label.module, module.label);
  Frame own(stack_, static_cast<std::size_t>(type.slots));
  for (std::size_t i = 0; i < count && i < type.input_defaults.size(); ++i) own[i] = arguments[i];
  fill_defaults(type, own.data(), &module);
  Value result;
  run(type.forward, &module, own.data(), result);
  return result;
}

Value Machine::call(const Module& module, Value* arguments, std::size_t count) {
  const Module& target = module.replaced_by ? *module.replaced_by : module;
  const bool again = target.type->spec->recompute_unit && recompute && runtime.grad_enabled;
  const auto run_it = [&](Value* own) {
    return again ? recompute(target, ValueList(own, own + count)) : forward(target, own, count);
  };
  const bool around = hooks && target.hooked && hooks_around_recompute;
  Value result = around ? hooked(target, arguments, count, run_it) : run_it(arguments);
  if (module.output_wants_gradient && result.kind == ValueKind::tensor &&
      !result.tensor.requires_grad()) {
    result.tensor->leaf_requires_grad = true;
  }
  return result;
}

}  // namespace shardfit::model
