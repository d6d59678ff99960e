#include "program/lora.h"

#include <algorithm>

#include "program/training.h"
#include "tensor/ops.h"

namespace shardfit::program {

using model::Machine;
using model::Module;
using model::Value;
using tensor::Tensor;

namespace {

std::string last_name(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// The adapter class of the frameworks' files for a module of this class.
const model::CompiledClass& adapter_class(Machine& machine, const std::string& name,
                                          const Module& module) {
  const model::CompiledClass* type = machine.library.find(name);
  if (!type) {
    throw model::ModelError(module.type->spec->where, module.path,
                            "no adapter '" + name + "' in this framework");
  }
  return *type;
}

}  // namespace

void apply_lora(const LoraJob& job, Machine& machine, const Module& root) {
  for (const model::Parameter& p : machine.parameters(root)) p.tensor->leaf_requires_grad = false;
  const std::size_t before = machine.modules.size();
  for (std::size_t i = 0; i < before; ++i) {
    Module& module = machine.modules[i];
    const std::string name = last_name(module.path);
    const std::string& type = module.type->spec->name;
    if (contains(job.targets, name) && module.type->spec->is_linear) {
      const std::string adapter = (job.dora ? "lora_dora_" : "lora_") + type;
      const DType base = machine.parameter_dtype;
      const tensor::Scoped<DType> dtype(machine.parameter_dtype,
                                        job.fp32_adapters ? DType::f32 : base);
      model::ValueList takes = {Value::of_module(&module), Value::of(job.rank),
                                Value::of_real(job.dropout)};
      module.replaced_by =
          machine.build(adapter_class(machine, adapter, module), std::move(takes), module.path);
    }
  }
}

}  // namespace shardfit::program
