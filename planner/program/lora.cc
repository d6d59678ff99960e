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

/// A target is a module's path or the end of one (tuners_utils.py, check_target_module_exists).
bool targeted(const std::vector<std::string>& targets, const std::string& path) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return names_end_of(target, path); });
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// The adapter class of the frameworks' files for a module of this class.
const model::CompiledClass& adapter_class(Machine& machine, const std::string& name,
                                          const Module& module) {
  const model::CompiledClass* type = machine.library.find(name);
  if (!type) {  // a subclass of nn.Linear is wrapped as one
    const bool dora = name.starts_with("lora_dora_");
    type = machine.library.find(dora ? "lora_dora_linear" : "lora_linear");
  }
  if (!type) {
    throw model::ModelError(module.type->spec->where, module.path,
                            "no adapter '" + name + "' in this framework");
  }
  return *type;
}

/// modules_to_save: a trainable copy stands beside the frozen original (utils/other.py,
/// ModulesToSaveWrapper).
const Module& trainable_copy(Machine& machine, const Module& original) {
  return *machine.build(*original.type, original.constants, original.path + ".modules_to_save");
}

/// autocast_adapter_dtype: adapters in 16 bit become fp32 (tuners_utils.py, cast_adapter_dtype).
void cast_adapters(Machine& machine, std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < end; ++i) {
    for (Tensor& t : machine.modules[i].tensors) {
      if (!t || !t->leaf_requires_grad || !is_half(t.dtype())) continue;
      const tensor::Scoped<tensor::Label> label(machine.runtime.label,
                                                {"parameter", machine.modules[i].label, false});
      const tensor::Scoped<bool> no_grad(machine.runtime.grad_enabled, false);
      t = tensor::to(t, DType::f32);
      t->leaf_requires_grad = true;
      machine.runtime.set_category(t, Category::parameter);
    }
  }
}

}  // namespace

bool names_end_of(const std::string& target, const std::string& path) {
  return path == target || path.ends_with("." + target);
}

void apply_lora(const LoraJob& job, Machine& machine, const Module& root) {
  for (const model::Parameter& p : machine.parameters(root)) p.tensor->leaf_requires_grad = false;
  const std::size_t before = machine.modules.size();
  for (std::size_t i = 0; i < before; ++i) {
    Module& module = machine.modules[i];
    const std::string& type = module.type->spec->name;
    if (targeted(job.targets, module.path) && module.type->spec->is_linear) {
      const std::string adapter = (job.dora ? "lora_dora_" : "lora_") + type;
      model::ValueList takes = {Value::of_module(&module), Value::of(job.rank),
                                Value::of_real(job.dropout)};
      module.replaced_by =
          machine.build(adapter_class(machine, adapter, module), std::move(takes), module.path);
    }
  }
  const std::size_t adapters_end = machine.modules.size();
  for (std::size_t i = 0; i < before; ++i) {
    Module& module = machine.modules[i];
    if (contains(job.modules_to_save, last_name(module.path))) {
      module.replaced_by = &trainable_copy(machine, module);
    }
  }
  if (job.fp32_adapters) cast_adapters(machine, before, adapters_end);
}

void require_input_gradients(Machine& machine) {
  for (Module& module : machine.modules) {
    if (module.type->spec->name != "embedding") continue;
    module.output_wants_gradient = true;
    return;
  }
}

}  // namespace shardfit::program
