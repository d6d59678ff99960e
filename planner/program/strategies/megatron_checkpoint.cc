#include "program/strategies/megatron_checkpoint.h"

#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::Machine;
using model::Module;
using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Tensor;

struct CheckpointExtra : tensor::NodeExtra {
  Machine* machine = nullptr;
  const Module* module = nullptr;
  ValueList arguments;  // tensors are saved by the node; their places are empty here
  std::vector<std::size_t> places;
  std::vector<bool> wants;
};

/// The tensors of a result that carry a gradient, in order.
std::vector<Tensor> outputs_of(const Value& result) {
  std::vector<Tensor> out;
  const auto take = [&](const Value& value) {
    if (value.kind == ValueKind::tensor) out.push_back(value.tensor);
  };
  take(result);
  if (result.kind == ValueKind::list) {
    for (const Value& item : *result.list) take(item);
  }
  return out;
}

void checkpoint_backward(Node& node, Gradients& in, Gradients& out) {
  auto& extra = static_cast<CheckpointExtra&>(*node.extra);
  Runtime& runtime = *node.runtime;
  {
    ValueList arguments = extra.arguments;
    std::vector<Tensor> detached;
    for (std::size_t i = 0; i < extra.places.size(); ++i) {
      Tensor own = tensor::detach(node.load(static_cast<int>(i)));
      own->leaf_requires_grad = extra.wants[i];
      arguments[extra.places[i]] = Value::of(own);
      detached.push_back(std::move(own));
    }
    std::vector<Tensor> outputs;
    {
      const Scoped<bool> grad(runtime.grad_enabled, true);
      outputs = outputs_of(extra.machine->forward(*extra.module, arguments));
    }
    arguments.clear();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (in[i] && outputs[i]->grad_fn) tensor::run_backward(outputs[i], in[i]);
    }
    for (std::size_t i = 0; i < detached.size(); ++i) out[i] = detached[i]->grad;
  }
  for (Tensor& gradient : in) gradient.reset();
}

Value checkpoint(Machine& machine, const Module& module, const ValueList& arguments) {
  Runtime& runtime = machine.runtime;
  auto extra = std::make_unique<CheckpointExtra>();
  extra->machine = &machine;
  extra->module = &module;
  extra->arguments = arguments;
  std::vector<Tensor> tensors;
  bool tracked = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind != ValueKind::tensor) continue;
    extra->places.push_back(i);
    extra->wants.push_back(arguments[i].tensor.requires_grad());
    tracked = tracked || arguments[i].tensor.requires_grad();
    extra->arguments[i] = {};
    tensors.push_back(arguments[i].tensor);
  }
  NodeRef node;
  if (tracked) {
    node = runtime.make_node("checkpoint", checkpoint_backward, static_cast<int>(tensors.size()));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      runtime.connect(*node.get(), static_cast<int>(i), tensors[i]);
    }
  }
  Value result;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    result = machine.forward(module, arguments);
  }
  if (!node) return result;
  for (const Tensor& output : outputs_of(result)) {
    if (!output->leaf_requires_grad) runtime.attach(node, output);
  }
  for (const Tensor& one : tensors) node->save(one);
  node->extra = std::move(extra);
  return result;
}

bool wanted(const MegatronJob& job, const Module& module) {
  const std::string& type = module.type->spec->name;
  switch (job.recompute) {
    case MegatronJob::Recompute::none:
      return false;
    case MegatronJob::Recompute::full:
      return type == "transformer_layer";
    case MegatronJob::Recompute::full_block: {
      if (type != "transformer_layer") return false;
      const std::size_t dot = module.path.rfind('.');
      return std::stoll(module.path.substr(dot + 1)) < job.recompute_layers;
    }
    case MegatronJob::Recompute::core_attention:
      return type == "core_attention";
    case MegatronJob::Recompute::mlp:
      return type == "mlp";
  }
  return false;
}

}  // namespace

MegatronCheckpointing::MegatronCheckpointing(Machine& machine, const MegatronJob& job)
    : machine_(machine) {
  if (job.recompute == MegatronJob::Recompute::none) return;
  machine.recompute = [&machine, job](const Module& module, ValueList arguments) {
    if (!wanted(job, module)) return machine.forward(module, arguments);
    return checkpoint(machine, module, arguments);
  };
}

MegatronCheckpointing::~MegatronCheckpointing() { machine_.recompute = nullptr; }

}  // namespace shardfit::program
