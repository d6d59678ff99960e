// Networks in numbers (spec::Wiring): how their modules are made, and their forward.

#include "model/machine.h"

namespace shardfit::model {

using spec::Wiring;

void Machine::make_wired(Module& module) {
  const Wiring& wiring = *module.type->spec->wiring;
  const std::vector<Code>& makers = module.type->child_makers;
  std::vector<std::optional<ValueList>> takes(makers.size());  // of equal constructor calls once
  const auto make = [&](std::uint32_t number, const std::string& path) {
    const CompiledClass& type = *makers[number].callee;
    if (!takes[number]) {
      takes[number] = takes_of(makers[number], module);
    }
    return Value::of_module(build(type, *takes[number], path));
  };
  module.children.reserve(wiring.parts.size());
  for (const Wiring::Part& part : wiring.parts) {
    const std::string path = module.path.empty() ? part.name : module.path + "." + part.name;
    if (!part.loop) {
      module.children.push_back(make(part.make, path));
      continue;
    }
    ValueList passes;
    passes.reserve(part.passes);
    for (std::uint32_t i = 0; i < part.passes; ++i) {
      passes.push_back(make(wiring.passes[part.make + i], path + "." + std::to_string(i)));
    }
    module.children.push_back(Value::of_list(std::move(passes)));
  }
}

/// Arguments stay alive until the call returns.
Value Machine::call_part(const Module& callee, const Wiring& wiring, const Wiring::Part& part,
                         const Value* values, const Value& first) {
  const std::size_t count = callee.type->input_defaults.size();
  Frame arguments(stack_, count);
  const Wiring::Read* reads = wiring.reads.data() + part.first;
  const auto argument = [&](std::uint32_t i) { return i == 0 ? first : values[reads[i].value]; };
  if (part.joined) {
    ValueList list(part.reads);
    for (std::uint32_t i = 0; i < part.reads; ++i) list[i] = argument(i);
    arguments[0] = Value::of_list(std::move(list));
  } else {
    for (std::uint32_t i = 0; i < part.reads && i < count; ++i) arguments[i] = argument(i);
  }
  return call(callee, arguments.data(), count);
}

Value Machine::run_wired(const Module& module, Value* values) {
  const Wiring& wiring = *module.type->spec->wiring;
  Value* result = values + module.type->input_defaults.size();
  for (std::size_t i = 0; i < wiring.parts.size(); ++i, ++result) {
    const Wiring::Part& part = wiring.parts[i];
    const Wiring::Read* reads = wiring.reads.data() + part.first;
    const Value& child = module.children[i];
    if (part.loop) {
      *result = values[reads[0].value];
      if (reads[0].goes == Wiring::Goes::before) values[reads[0].value] = Value();
      for (const Value& pass : *child.list) {
        Value made = call_part(*pass.module, wiring, part, values, *result);
        if (runtime.stopped()) return {};
        std::swap(*result, made);
      }
    } else {
      *result = call_part(*child.module, wiring, part, values, values[reads[0].value]);
      if (runtime.stopped()) return {};
    }
    for (std::uint32_t r = 0; r < part.reads; ++r) {
      if (reads[r].goes == Wiring::Goes::after) values[reads[r].value] = Value();
    }
  }
  if (wiring.one_result) return values[wiring.results.front()];
  ValueList results;
  for (const std::uint32_t value : wiring.results) results.push_back(values[value]);
  return Value::of_list(std::move(results));
}

}  // namespace shardfit::model
