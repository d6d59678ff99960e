#include "model/machine.h"

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

}  // namespace

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
  if (runtime.stopped()) return {};
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
  if (runtime.stopped()) return {};
  // An adapter calls the module it wraps.
  if (self && callee.module->replaced_by == self) {
    return forward(*callee.module, arguments.data(), count);
  }
  return call(*callee.module, arguments.data(), count);
}

Value Machine::evaluate(const Code& code, const Module* self, Value* locals) {
  if (runtime.stopped()) return {};
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
        if (runtime.stopped()) return {};
        if (!code.unit || !hooks || !self) return code.builtin(*this, arguments.data());
        hooks->before_unit(*self, &code, arguments[0]);
        Value result = code.builtin(*this, arguments.data());
        if (!runtime.stopped()) hooks->after_unit(*self, &code, result);
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
        if (runtime.stopped()) return {};
        return arithmetic(code.binary, left, right);
      }
      case Op::unary: {
        const Value v = evaluate(code.children[0], self, locals);
        if (runtime.stopped()) return {};
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
        const Value at = evaluate(code.children[1], self, locals);
        if (runtime.stopped()) return {};
        const std::int64_t i = integer_of(at, "an index");
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
        if (runtime.stopped()) return {};
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

namespace {

/// `name = name + ...`
bool adds_to_itself(const Step& step) {
  return step.slots.size() == 1 && step.value.op == Op::binary &&
         step.value.binary == BinaryOp::add && step.value.children[0].op == Op::local &&
         step.value.children[0].a == step.slots[0];
}

}  // namespace

bool Machine::run(const std::vector<Step>& steps, const Module* self, Value* locals,
                  Value& result) {
  for (const Step& step : steps) {
    switch (step.kind) {
      case StatementKind::assign: {
        // A list that grows by itself, and is nobody else's, is not copied each time.
        if (Value& own = locals[step.slots[0]];
            own.kind == ValueKind::list && adds_to_itself(step)) {
          const Value more = evaluate(step.value.children[1], self, locals);
          if (runtime.stopped()) return true;
          if (more.kind != ValueKind::list) {
            fail(step.value, self,
                 std::string("cannot calculate with a list and ") + kind_text(more.kind));
          }
          if (own.list.use_count() > 1) own.list = std::make_shared<ValueList>(*own.list);
          own.list->insert(own.list->end(), more.list->begin(), more.list->end());
          break;
        }
        Value value = evaluate(step.value, self, locals);
        if (runtime.stopped()) return true;
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
        if (runtime.stopped()) return true;
        break;
      case StatementKind::branch: {
        const bool taken = evaluate(step.value, self, locals).truth();
        if (runtime.stopped()) return true;
        if (run(taken ? step.body : step.otherwise, self, locals, result)) return true;
        break;
      }
      case StatementKind::loop: {
        const Value over = evaluate(step.value, self, locals);
        if (runtime.stopped()) return true;
        if (over.kind != ValueKind::list) fail(step.value, self, "'for' needs a list");
        for (std::size_t i = 0; i < over.list->size(); ++i) {
          locals[step.slots[0]] = (*over.list)[i];
          if (run(step.body, self, locals, result)) return true;
        }
        break;
      }
      case StatementKind::within: {
        const Value what = evaluate(step.value, self, locals);
        if (runtime.stopped()) return true;
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
  if (runtime.stopped()) return {};
  fill_defaults(type, own.data(), nullptr);
  const bool unit = code.unit && hooks && self;
  if (unit) hooks->before_unit(*self, &code, own[0]);
  Value result;
  run(type.forward, nullptr, own.data(), result);
  if (unit && !runtime.stopped()) hooks->after_unit(*self, &code, result);
  return result;
}

template <class Run>
Value Machine::hooked(const Module& module, const Value* arguments, std::size_t count,
                      const Run& run_it) {
  Frame own(stack_, count);
  for (std::size_t i = 0; i < count; ++i) own[i] = arguments[i];
  hooks->before_forward(module, own.data(), count);
  Value result = run_it(own.data());
  if (!runtime.stopped()) hooks->after_forward(module, result);
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
  if (type.spec->wiring && networks) return networks->run(module, arguments, count);
  Frame own(stack_, static_cast<std::size_t>(type.slots));
  for (std::size_t i = 0; i < count && i < type.input_defaults.size(); ++i) own[i] = arguments[i];
  fill_defaults(type, own.data(), &module);
  if (type.spec->wiring) return run_wired(module, own.data());
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
  const bool watched = units && target.type->spec->recompute_unit && !around;
  Value result = watched  ? units->call(target, arguments, count, [&] { return run_it(arguments); })
                 : around ? hooked(target, arguments, count, run_it)
                          : run_it(arguments);
  if (module.output_wants_gradient && result.kind == ValueKind::tensor &&
      !result.tensor.requires_grad()) {
    result.tensor->leaf_requires_grad = true;
  }
  return result;
}

}  // namespace shardfit::model
