#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <utility>

#include "base/units.h"
#include "model/machine.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace shardfit::model {

using tensor::Tensor;

namespace {

/// Far more than any model has; programs grow with every layer.
constexpr std::int64_t most_repeats = 2048;

DType dtype_named(const std::string& name, DType fallback) {
  if (name.empty()) return fallback;
  for (int d = 0; d <= static_cast<int>(DType::boolean); ++d) {
    if (name == dtype_name(static_cast<DType>(d))) return static_cast<DType>(d);
  }
  return fallback;
}

const Code& chosen_of(Machine& machine, const Code& code, const Module& self) {
  if (code.op != Op::choice) return code;
  const bool first = machine.evaluate(code.children[1], &self, nullptr).truth();
  return chosen_of(machine, code.children[first ? 0 : 2], self);
}

/// The sizes of a list of such, which needs no list to be made; false where it is none.
bool listed_sizes(Machine& machine, const Code& code, const Module& self, tensor::Shape& sizes) {
  if (code.op != Op::list || code.children.size() > tensor::max_dims) return false;
  for (const Code& child : code.children) {
    const Value size = machine.evaluate(child, &self, nullptr);
    if (size.kind != ValueKind::integer || size.integer < 0) return false;
    sizes.push_back(size.integer);
  }
  return true;
}

}  // namespace

Value Machine::make_of(const Code& code, const Module& parent, const std::string& path) {
  if (code.op == Op::choice) {
    return make_of(
        evaluate(code.children[1], &parent, nullptr).truth() ? code.children[0] : code.children[2],
        parent, path);
  }
  if (code.op == Op::constant && code.value.is_none()) return {};
  if (code.op == Op::own_constant)
    return evaluate(code, &parent, nullptr);  // a module it was given
  if (code.op == Op::call_class) {
    ValueList takes = arguments_of(code, 0, code.callee->spec->takes.size(), &parent, nullptr);
    return Value::of_module(build(*code.callee, std::move(takes), path));
  }
  if (code.op == Op::attribute || code.op == Op::index || code.op == Op::child) {
    Value known = evaluate(code, &parent, nullptr);  // one that stands elsewhere too
    if (known.kind == ValueKind::module) return known;
  }
  throw ModelError(code.source ? code.source->where : Location{}, path,
                   "a child is made by a module's name with its arguments");
}

Value Machine::make_child(const Code& maker, const Module& parent, const std::string& path) {
  if (maker.op == Op::list) {  // modules of several kinds, numbered; those not made leave no gap
    ValueList list;
    for (const Code& item : maker.children) {
      Value made = make_of(item, parent, path + "." + std::to_string(list.size()));
      if (!made.is_none()) list.push_back(std::move(made));
    }
    return Value::of_list(std::move(list));
  }
  const bool repeated = maker.op == Op::call_builtin && maker.source->text == "repeat";
  if (!repeated) return make_of(maker, parent, path);
  const Value repeats = evaluate(maker.children[0], &parent, nullptr);
  const std::int64_t count = repeats.kind == ValueKind::integer ? repeats.integer : -1;
  if (count < 0 || count > most_repeats) {
    const std::string found =
        repeats.kind == ValueKind::integer ? std::to_string(count) : std::string("no whole number");
    throw ModelError(maker.source->where, path,
                     "expected 0 to " + std::to_string(most_repeats) + " layers, found " + found);
  }
  ValueList list;
  for (std::int64_t i = 0; i < count; ++i) {
    const tensor::Scoped<std::int64_t> index(repeat_index_, i);
    list.push_back(make_of(maker.children[1], parent, path + "." + std::to_string(i)));
  }
  return Value::of_list(std::move(list));
}

const Module* Machine::build(const CompiledClass& type, ValueList takes, const std::string& path) {
  const Nested nested(*this, type, path);
  modules.emplace_back();
  Module& module = modules.back();
  module.type = &type;
  module.path = path;
  module.label = runtime.module_id(path);
  const tensor::Scoped<tensor::Label> label(runtime.label, {"parameter", module.label, false});
  const spec::ClassSpec& s = *type.spec;
  takes.resize(s.takes.size());
  module.constants.reserve(s.takes.size() + type.constants.size());
  module.tensors.reserve(s.parameters.size() + s.buffers.size());
  for (std::size_t i = 0; i < s.takes.size(); ++i) {
    Value v = std::move(takes[i]);
    if (v.is_none()) v = evaluate(type.take_defaults[i], &module, nullptr);
    module.constants.push_back(std::move(v));
  }
  for (const Code& constant : type.constants) {
    module.constants.push_back(evaluate(constant, &module, nullptr));
  }
  const auto make = [&](std::size_t i) {
    const std::string child = path.empty() ? s.children[i].name : path + "." + s.children[i].name;
    Value made = make_child(type.child_makers[i], module, child);
    module.children[i] = std::move(made);
  };
  const auto built_first = [&](std::size_t i) {
    return std::find(s.first.begin(), s.first.end(), s.children[i].name) != s.first.end();
  };
  module.children.resize(s.children.size());
  for (std::size_t i = 0; i < s.children.size(); ++i) {
    if (built_first(i)) make(i);
  }
  make_tensors(module);
  for (std::size_t i = 0; i < s.children.size(); ++i) {
    if (!built_first(i)) make(i);
  }
  if (s.wiring && !networks) make_wired(module);
  if (!type.construct.empty()) run_construct(module);
  if (built) built(module);
  return &module;
}

void Machine::make_tensors(Module& module) {
  const CompiledClass& type = *module.type;
  const auto make = [&](const spec::TensorSpec& wanted, const Code& code, bool trainable) {
    tensor::Shape sizes;
    const Code& chosen = chosen_of(*this, code, module);
    const bool listed = listed_sizes(*this, chosen, module, sizes);
    const Value shape = listed ? Value() : evaluate(chosen, &module, nullptr);
    Tensor t;
    if (listed || !shape.is_none()) {
      try {
        if (!listed) sizes = sizes_of(shape, "a tensor's shape");
        const DType dtype = dtype_named(wanted.dtype, parameter_dtype);
        t = wanted.host ? runtime.host_scalar(dtype) : runtime.empty(sizes, dtype);
        if (wanted.host) {
          t->shape = sizes;
          t->stride = tensor::contiguous_strides(sizes);
        }
      } catch (const OverflowError&) {
        throw;
      } catch (const std::runtime_error& error) {
        throw ModelError(wanted.where, module.path, error.what());
      }
      t->leaf_requires_grad = trainable && is_floating(t.dtype());
      runtime.set_category(t, Category::parameter);
    }
    module.tensors.push_back(t);
  };
  for (std::size_t i = 0; i < type.spec->parameters.size(); ++i) {
    make(type.spec->parameters[i], type.parameter_shapes[i], true);
  }
  for (std::size_t i = 0; i < type.spec->buffers.size(); ++i) {
    make(type.spec->buffers[i], type.buffer_shapes[i], false);
  }
}

/// Runs what a constructor does on the device; tensors bound to names of parameters or buffers
/// become these, the rest goes.
void Machine::run_construct(Module& module) {
  const CompiledClass& type = *module.type;
  const tensor::Scoped<bool> no_grad(runtime.grad_enabled, false);
  ValueList locals(type.construct_locals.size());
  Value result;
  run(type.construct, &module, locals.data(), result);
  const std::size_t parameters = type.spec->parameters.size();
  for (std::size_t i = 0; i < module.tensors.size(); ++i) {
    const bool parameter = i < parameters;
    const std::string& name =
        parameter ? type.spec->parameters[i].name : type.spec->buffers[i - parameters].name;
    for (std::size_t slot = 0; slot < locals.size(); ++slot) {
      if (type.construct_locals[slot] != name || locals[slot].kind != ValueKind::tensor) continue;
      module.tensors[i] = locals[slot].tensor;
      module.tensors[i]->leaf_requires_grad = parameter;
      runtime.set_category(module.tensors[i], Category::parameter);
    }
  }
}

namespace {

/// Module.to: children first, then a module's own tensors; each is copied where dtype or format
/// change, and its old memory goes (torch/nn/modules/module.py, _apply).
void convert_module(const Module& module, DType dtype, bool channels_last) {
  for_each_child(module, [&](const Module& child) { convert_module(child, dtype, channels_last); });
  for (const Tensor& t : module.tensors) {
    if (!t) continue;
    const DType wanted = is_floating(t.dtype()) ? dtype : t.dtype();
    const bool moved = channels_last && t.rank() == 4 && !tensor::suggests_channels_last(t);
    if (wanted == t.dtype() && !moved) continue;
    tensor::Runtime& runtime = t.runtime();
    const Tensor made = moved ? tensor::empty_in(runtime, t.shape(), wanted, true)
                              : runtime.empty_strided(t.shape(), t->stride, wanted);
    runtime.set_category(made, Category::parameter);
    runtime.rebase(t, made);
    t->dtype = wanted;
    t->stride = made->stride;
  }
}

}  // namespace

void Machine::convert(const Module& root, DType dtype, bool channels_last) {
  convert_module(root, dtype, channels_last);
}

void Machine::tie() {
  const auto place_of = [this](const std::string& path, const Location& where) -> Tensor* {
    const std::size_t dot = path.rfind('.');
    const std::string owner = dot == std::string::npos ? "" : path.substr(0, dot);
    for (Module& module : modules) {
      if (module.path != owner) continue;
      const auto& names = module.type->spec->parameters;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i].name == path.substr(dot + 1)) return &module.tensors[i];
      }
    }
    throw ModelError(where, owner, "no parameter '" + path + "' to tie");
  };
  std::deque<std::string> texts;
  for (const spec::TieSpec& tie_spec : library.family().ties) {
    Diagnostics faults;
    const Code when = bind_expression(tie_spec.when, globals, nullptr, texts, faults);
    faults.throw_if_any();
    if (!evaluate(when, nullptr, nullptr).truth()) continue;
    *place_of(tie_spec.target, tie_spec.where) = *place_of(tie_spec.source, tie_spec.where);
  }
}

namespace {

/// `wraps`: it holds a module in whose place it stands, and lists what that one has first
/// (peft/tuners/lora/layer.py, base_layer).
void list_parameters(const Module& module, bool wraps, std::vector<Parameter>& out);

void list_own(const Module& module, std::vector<Parameter>& out) {
  const auto& own = module.type->spec->parameters;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Tensor& t = module.tensors[i];
    if (!t) continue;
    std::string path;
    path.reserve(module.path.size() + 1 + own[i].name.size());
    path += module.path;
    if (!path.empty()) path += '.';
    path += own[i].name;
    out.push_back({std::move(path), t, &module, static_cast<int>(i)});
  }
}

void list_parameters(const Module& module, bool wraps, std::vector<Parameter>& out) {
  if (!wraps) list_own(module, out);
  for_each_child(module, [&](const Module& child) {
    const Module* adapter = child.replaced_by;
    if (!adapter || adapter == &module) return list_parameters(child, false, out);
    list_parameters(*adapter, adapter->type != child.type, out);
  });
  if (wraps) list_own(module, out);
}

/// Addresses seen, one block of memory for all.
class Seen {
 public:
  explicit Seen(std::size_t most) : slots_(std::bit_ceil(2 * most + 1), nullptr) {}
  /// False where it was there already.
  bool insert(const void* address) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = reinterpret_cast<std::uintptr_t>(address) * 0x9E3779B97F4A7C15 >> 20 & mask;
    while (slots_[place] && slots_[place] != address) place = (place + 1) & mask;
    return std::exchange(slots_[place], address) == nullptr;
  }

 private:
  std::vector<const void*> slots_;
};

}  // namespace

std::vector<Parameter> Machine::parameters(const Module& root) const {
  std::vector<Parameter> out;
  list_parameters(root, false, out);
  // A tensor that several modules share is listed where it comes first.
  Seen seen(out.size());
  out.erase(std::remove_if(out.begin(), out.end(),
                           [&](const Parameter& p) { return !seen.insert(p.tensor.get()); }),
            out.end());
  return out;
}

}  // namespace shardfit::model
