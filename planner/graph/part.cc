#include "graph/part.h"

#include <algorithm>

#include "graph/part_run.h"

namespace shardfit::graph {

using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Tensor;

/// The node of an input: the gradient that has gathered there leaves the part.
void leave(Node& node, Gradients& in, Gradients&) {
  *static_cast<Leaving&>(*node.extra).to = std::move(in[0]);
}

std::uint32_t Forms::number(const tensor::TensorBody& tensor) {
  auto hash = static_cast<std::uint64_t>(tensor.dtype);
  for (int i = 0; i < tensor.shape.rank; ++i) {
    hash = mixed(hash, static_cast<std::uint64_t>(tensor.shape[i]));
    hash = mixed(hash, static_cast<std::uint64_t>(tensor.stride[i]));
  }
  const auto [number, fresh] = numbers_.add(hash, [&](std::uint32_t known) {
    const Form& form = forms_[known];
    return form.dtype == tensor.dtype && form.shape == tensor.shape && form.stride == tensor.stride;
  });
  if (fresh) forms_.push_back({tensor.dtype, tensor.shape, tensor.stride});
  return number;
}

PartRunner::PartRunner(const model::Machine& whole, Forms& forms)
    : whole_(whole),
      forms_(forms),
      runtime_(whole.runtime.device),
      machine_(runtime_, whole.library, whole.globals) {
  runtime_.module_id("");
  machine_.parameter_dtype = whole.parameter_dtype;
  machine_.training = whole.training;
  runtime_.linear_keeps_parameters = whole.runtime.linear_keeps_parameters;
  // What a process takes once comes before any part.
  for (const bool autograd : {false, true}) {
    const tensor::Scoped<bool> thread(runtime_.autograd_thread, autograd);
    runtime_.use_blas();
  }
  run_ = std::make_unique<Run>(*this);
}

PartRunner::~PartRunner() = default;

/// Builds the module and its inputs, each with a node of its own behind it.
void PartRunner::begin(const Asked& asked) {
  Run& run = *run_;
  const std::vector<PartInput>& inputs = *asked.inputs;
  run.recorder.begin(inputs);
  run.module = machine_.build(*asked.type, *asked.takes, "part");
  run.leaving.resize(inputs.size());
  run.sources.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const PartInput& input = inputs[i];
    const Form& form = forms_[input.form];
    if (input.body != i) {
      run.inputs.push_back(run.inputs[input.body]);
      run.sources[i] = run.sources[input.body];
      continue;
    }
    if (input.storage != i) {
      run.inputs.push_back(runtime_.alias_of(run.inputs[input.storage], form.shape, form.stride));
      run.inputs.back()->dtype = form.dtype;
    } else {
      run.inputs.push_back(runtime_.empty_strided(form.shape, form.stride, form.dtype));
    }
    const Tensor& tensor = run.inputs.back();
    if (!tensor->storage) throw NotInParts();
    tensor->producer = input.made ? static_cast<std::int32_t>(input.producer) : -1;
    if (!input.wants_gradient) continue;
    if (input.slot != i) {
      run.sources[i] = run.sources[input.slot];
      if (!run.sources[i]) throw NotInParts();
      tensor->grad_fn = run.sources[i];
      tensor->output = 0;
      continue;
    }
    run.sources[i] = runtime_.make_node("input", leave, 0);
    auto leaving = std::make_unique<Leaving>();
    leaving->input = static_cast<std::uint32_t>(i);
    leaving->to = &run.leaving[i];
    run.sources[i]->extra = std::move(leaving);
    runtime_.attach(run.sources[i], tensor);
  }
  run.recorder.see_inputs(run.inputs);
}

/// As Machine::call_part hands over what a part reads.
void PartRunner::call(const Asked& asked) {
  Run& run = *run_;
  runtime_.recorder = &run.recorder;
  ValueList values;
  values.reserve(std::max(run.inputs.size(), run.module->type->input_defaults.size()));
  for (const Tensor& tensor : run.inputs) values.push_back(Value::of(tensor));
  if (asked.joined) values = {Value::of_list(std::move(values))};
  values.resize(run.module->type->input_defaults.size());
  const Value result = machine_.call(*run.module, values.data(), values.size());
  if (result.kind != ValueKind::tensor) throw NotInParts();
  run.result = result.tensor;
}

void PartRunner::forward(const Asked& asked, Part& part, Ahead* ahead) {
  const tensor::Autocast& autocast = whole_.runtime.autocast;
  runtime_.autocast.enabled = autocast.enabled;
  runtime_.autocast.dtype = autocast.dtype;
  runtime_.autocast.cache_enabled = autocast.cache_enabled;
  runtime_.autocast.depth = autocast.depth;
  runtime_.grad_enabled = whole_.runtime.grad_enabled;
  Run& run = *run_;
  const Run::End end(run);
  begin(asked);
  call(asked);
  run.recorder.finish(machine_, run.result, asked, part);
  const std::vector<PartInput>& inputs = *asked.inputs;
  part.form = forms_.number(*run.result.get());
  part.body = Place::own(0);
  part.view = static_cast<bool>(run.result->base);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].body != i) continue;
    const Tensor& input = run.inputs[i];
    if (input == run.result) part.body = Place::of_input(i);
    const bool as_before =
        input->grad_fn.get() == run.sources[i].get() &&
        forms_.number(*input.get()) == inputs[i].form &&
        input->producer == (inputs[i].made ? static_cast<std::int32_t>(inputs[i].producer) : -1);
    if (!as_before) part.in_place = true;
    if (!as_before && !(input == run.result)) throw NotInParts();
  }
  if (!run.result->grad_fn) return;
  if (const Leaving* leaving = leaving_of(*run.result->grad_fn.get())) {
    part.slot = Place::of_input(leaving->input);
    part.reached.clear();
    return;
  }
  part.slot = Place::own(0);
  if (!ahead) return;
  first_gradient(part, run.result, ahead->gradients);
  step_back(part, ahead->gradients, ahead->backward);
  ahead->ran = true;
}

}  // namespace shardfit::graph
