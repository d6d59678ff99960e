#include "tensor/runtime.h"

#include <algorithm>
#include <cassert>

#include "base/units.h"

namespace shardfit::tensor {

Runtime::~Runtime() {
  closing_ = true;
  autocast.cache.clear();
  release_blas_workspaces();
  // Tensors and nodes that hold each other in a ring outlive the program: a block that writes over
  // its own input, recomputed.
  if (bodies_.all_came_back() && nodes_.all_came_back()) return;
  std::vector<NodeRef> nodes;
  std::vector<Tensor> tensors;
  bodies_.for_each([&](TensorBody& body) {
    nodes.push_back(std::move(body.grad_fn));
    tensors.push_back(std::move(body.grad));
    tensors.push_back(std::move(body.base));
  });
}

Storage* Runtime::new_storage(std::int64_t bytes) {
  Storage* storage = storages_.take();
  storage->runtime = this;
  storage->id = static_cast<std::uint32_t>(program.storages.size());
  storage->stream = current_stream;
  storage->has_memory = !stopped_;
  StorageInfo info;
  info.bytes = bytes;
  info.stream = current_stream;
  info.backward = label.backward;
  info.kind = label.kind;
  info.module = label.module;
  program.storages.push_back(info);
  emit(Action::allocate, current_stream, storage->id);
  return storage;
}

TensorBody* Runtime::new_body(const Shape& shape, const Shape& stride, DType dtype,
                              Storage* storage) {
  TensorBody* body = bodies_.take();
  body->runtime = this;
  body->shape = shape;
  body->stride = stride;
  body->dtype = dtype;
  body->storage = storage;
  if (storage) ++storage->references;
  return body;
}

Tensor Runtime::empty(const Shape& shape, DType dtype) {
  shape.count();  // throws before strides could wrap round
  return empty_strided(shape, contiguous_strides(shape), dtype);
}

Tensor Runtime::empty_strided(const Shape& shape, const Shape& stride, DType dtype) {
  const std::int64_t bytes = checked_multiply(shape.count(), element_size(dtype));
  return Tensor(new_body(shape, stride, dtype, bytes > 0 && !meta ? new_storage(bytes) : nullptr));
}

Tensor Runtime::adopt(std::uint32_t id, const Shape& shape, const Shape& stride, DType dtype) {
  Storage* storage = storages_.take();
  storage->runtime = this;
  storage->id = id;
  storage->stream = program.storages[id].stream;
  storage->has_memory = true;
  return Tensor(new_body(shape, stride, dtype, storage));
}

void Runtime::disown(const Tensor& tensor) { tensor->storage->has_memory = false; }

Tensor Runtime::view_of(const Tensor& base, const Shape& shape, const Shape& stride) {
  Tensor view = alias_of(base, shape, stride);
  view->base = base->base ? base->base : base;
  return view;
}

Tensor Runtime::alias_of(const Tensor& base, const Shape& shape, const Shape& stride) {
  Tensor alias(new_body(shape, stride, base.dtype(), base->storage));
  alias->on_host = base->on_host;
  alias->producer = base->producer;
  return alias;
}

void Runtime::rebase(const Tensor& tensor, const Tensor& onto) {
  if (onto->storage) ++onto->storage->references;
  Storage* old = std::exchange(tensor->storage, onto->storage);
  if (old && --old->references == 0) drop(old);
}

void Runtime::set_data(const Tensor& tensor, const Tensor& data) {
  rebase(tensor, data);
  tensor->shape = data.shape();
  tensor->stride = data->stride;
  tensor->on_host = data->on_host;
  // A gradient accumulator is of one dtype (torch/csrc/autograd/variable.cpp, set_data).
  if (tensor.dtype() != data.dtype()) tensor->accumulator = nullptr;
  tensor->dtype = data.dtype();
}

void Runtime::take_memory(const Tensor& tensor) {
  Storage* storage = tensor->storage;
  if (!storage || !storage->has_memory) return;
  storage->has_memory = false;
  program.instructions.push_back({Action::release, storage->stream, storage->id});
}

void Runtime::give_memory(const Tensor& tensor) {
  Storage* storage = tensor->storage;
  if (!storage || storage->has_memory) return;
  StorageInfo info = program.storages[storage->id];
  info.stream = current_stream;
  info.backward = label.backward;
  info.kind = label.kind;
  info.module = label.module;
  storage->has_memory = true;
  storage->stream = current_stream;
  storage->id = static_cast<std::uint32_t>(program.storages.size());
  program.storages.push_back(info);
  program.instructions.push_back({Action::allocate, current_stream, storage->id});
}

Tensor Runtime::scratch(std::int64_t bytes) { return empty(Shape{bytes}, DType::u8); }

Tensor Runtime::on_host(const Shape& shape, DType dtype) {
  Tensor tensor(new_body(shape, contiguous_strides(shape), dtype, nullptr));
  tensor->on_host = true;
  return tensor;
}

NodeRef Runtime::make_node(const char* kind, Backward backward, int edges) {
  Node* node = nodes_.take();
  node->runtime = this;
  node->kind = kind;
  node->module = label.module;
  node->stream = current_stream;
  node->backward = backward;
  node->sequence = next_sequence++;
  node->next.resize(static_cast<std::size_t>(edges));
  return NodeRef(node);
}

namespace {

void accumulate(Node& node, Gradients& in, Gradients&);

}  // namespace

void Runtime::connect(Node& node, int place, const Tensor& input) {
  if (!input) return;
  Edge& edge = node.next[static_cast<unsigned>(place)];
  if (input->grad_fn) {
    edge.node = input->grad_fn;
    edge.input = input->output;
  } else if (input->leaf_requires_grad) {
    if (!input->accumulator) {
      NodeRef made = make_node("accumulate_grad", accumulate, 0);
      made->sequence = accumulate_sequence;
      made->held_variable = input;
      made->inputs.push_back({input.shape(), input.dtype()});
      input->accumulator = made.get();
      edge.node = made;
    } else {
      edge.node = NodeRef(input->accumulator);
    }
    edge.input = 0;
  }
}

void Runtime::attach(const NodeRef& node, const Tensor& output) {
  output->grad_fn = node;
  output->output = static_cast<std::uint32_t>(node->inputs.size());
  node->inputs.push_back({output.shape(), output.dtype()});
  if (!recorder || stopped_) return;
  if (output->producer < 0)
    ran(node->kind, {}, {output});  // an operator that does not say so itself
  if (node->operation < 0) node->operation = output->producer;
}

void Runtime::use_blas() {
  Tensor& workspace = blas_workspace_[autograd_thread ? 1 : 0];
  if (workspace || stopped_) return;
  const Scoped<const char*> kind(label.kind, "blas_workspace");
  workspace = scratch(device.blas_workspace());
  set_category(workspace, Category::workspace);
}

void Runtime::release_blas_workspaces() {
  for (Tensor& workspace : blas_workspace_) workspace.reset();
}

std::uint8_t Runtime::stream(const std::string& name) {
  const auto found = std::find(program.streams.begin(), program.streams.end(), name);
  if (found != program.streams.end()) {
    return static_cast<std::uint8_t>(found - program.streams.begin());
  }
  assert(program.streams.size() < 256);
  program.streams.push_back(name);
  return static_cast<std::uint8_t>(program.streams.size() - 1);
}

void Runtime::record_event(std::uint32_t event, std::uint8_t on) {
  emit(Action::record_event, on, event);
}

void Runtime::wait_event(std::uint32_t event, std::uint8_t on) {
  emit(Action::wait_event, on, event);
}

void Runtime::host_wait(std::uint32_t event) { emit(Action::host_wait, 0, event); }

void Runtime::record_stream(const Tensor& tensor, std::uint8_t on) {
  if (!tensor || !tensor->storage) return;
  emit(Action::record_stream, on, tensor->storage->id);
}

std::uint32_t Runtime::group(const std::vector<std::int32_t>& ranks) {
  const auto found = std::find(program.groups.begin(), program.groups.end(), ranks);
  if (found != program.groups.end()) {
    return static_cast<std::uint32_t>(found - program.groups.begin());
  }
  program.groups.push_back(ranks);
  return static_cast<std::uint32_t>(program.groups.size() - 1);
}

std::uint32_t Runtime::exchange(Collective collective, std::uint8_t on) {
  if (stopped_) return make_event();
  if (on != current_stream) {
    const std::uint32_t ready = make_event();
    record_event(ready, current_stream);
    wait_event(ready, on);
  }
  collective.module = label.module;
  collective.backward = label.backward;
  program.instructions.push_back(
      {Action::collective, on, static_cast<std::uint32_t>(program.collectives.size())});
  program.collectives.push_back(collective);
  const std::uint32_t done = make_event();
  record_event(done, on);
  return done;
}

void Runtime::mark(const std::string& phase, int step, bool live) {
  program.instructions.push_back(
      {Action::phase, 0, static_cast<std::uint32_t>(program.phases.size())});
  program.phases.push_back({phase, step, live});
}

StorageInfo& Runtime::info(const Tensor& tensor) {
  assert(tensor && tensor->storage);
  return program.storages[tensor->storage->id];
}

void Runtime::set_category(const Tensor& tensor, Category category) {
  if (tensor && tensor->storage) info(tensor).category = category;
}

std::uint32_t Runtime::module_id(const std::string& path) {
  program.modules.push_back(path);
  return static_cast<std::uint32_t>(program.modules.size() - 1);
}

namespace {

/// Bytes of the elements a kernel touches: those of an expanded dimension are there once.
double touched_bytes(const Tensor& tensor) {
  if (!tensor || tensor->on_host) return 0;
  double bytes = static_cast<double>(element_size(tensor.dtype()));
  for (int i = 0; i < tensor.rank(); ++i) {
    if (tensor->stride[i] != 0) bytes *= static_cast<double>(tensor.size(i));
  }
  return bytes;
}

}  // namespace

void Runtime::ran(const char* kind, Tensors inputs, Tensors outputs, Compute cost) {
  if (stopped_) return;
  cost.kind = kind;
  cost.module = label.module;
  cost.backward = label.backward;
  if (cost.bytes == 0) {
    for (const Tensor& tensor : inputs) cost.bytes += touched_bytes(tensor);
    for (const Tensor& tensor : outputs) cost.bytes += touched_bytes(tensor);
  }
  const Tensor& typed = inputs.empty() ? outputs.front() : inputs.front();
  cost.dtype = typed.dtype();
  if (record_computes) {
    program.instructions.push_back({Action::compute, current_stream, compute_id(cost)});
  }
  if (!recorder) return;
  const std::int32_t number = recorder->ran(cost, inputs, outputs);
  for (const Tensor& tensor : outputs) tensor->producer = number;
}

void Runtime::launched(const char* kind, DType dtype, double bytes, std::int64_t launches) {
  if (!record_computes || stopped_) return;
  Compute cost;
  cost.kind = kind;
  cost.module = label.module;
  cost.backward = label.backward;
  cost.dtype = dtype;
  cost.bytes = bytes;
  cost.groups = launches;
  program.instructions.push_back({Action::compute, current_stream, compute_id(cost)});
}

void Runtime::viewed(const char* kind, const Tensor& input, const Tensor& output) {
  if (!recorder || stopped_) return;
  Compute cost;
  cost.kind = kind;
  cost.module = label.module;
  cost.backward = label.backward;
  cost.dtype = output.dtype();
  output->producer = recorder->ran(cost, {input}, {output});
}

void Runtime::stop() {
  stopped_ = true;
  mode = nullptr;  // who set it sets it back
  storages_at_stop_ = program.storages.size();
}

void Runtime::resume() {
  stopped_ = false;
  program.storages.resize(storages_at_stop_);
}

void Runtime::drop(Storage* storage) {
  if (!closing_ && storage->has_memory) {
    program.instructions.push_back({Action::release, storage->stream, storage->id});
  }
  storages_.give(storage);
}

void Runtime::drop(TensorBody* body) {
  Storage* storage = std::exchange(body->storage, nullptr);
  if (storage && --storage->references == 0) drop(storage);
  body->grad_fn.reset();
  body->grad.reset();
  body->base.reset();
  body->leaf_requires_grad = false;
  body->replaceable = false;
  body->on_host = false;
  body->accumulator = nullptr;
  body->output = 0;
  body->parameter = -1;
  body->producer = -1;
  bodies_.give(body);
}

void Runtime::drop(Node* node) {
  if (node->held_variable) {
    if (node->held_variable->accumulator == node) node->held_variable->accumulator = nullptr;
    node->held_variable.reset();
  }
  node->release_saved();
  node->saved.clear();
  node->extra.reset();
  node->before.clear();
  node->after.clear();
  node->pending.clear();
  // A long chain of nodes is dropped in a loop, not by recursion: 10^5 operators deep would be a
  // stack overflow (pytorch torch/csrc/autograd/function.cpp, deleteNode).
  for (Edge& edge : node->next) {
    if (edge.node) dropped_.push_back(std::move(edge.node));
  }
  node->next.clear();
  node->inputs.clear();
  node->number = {};
  node->operation = -1;
  node->divided_output = -1;
  node->sizes.clear();
  node->pass = 0;
  node->subclass_gradients = false;
  nodes_.give(node);
  if (dropping_) return;
  dropping_ = true;
  while (!dropped_.empty()) {
    NodeRef next = std::move(dropped_.back());
    dropped_.pop_back();
    next.reset();
  }
  dropping_ = false;
}

void Node::release_saved() {
  for (Saved& one : saved) one.reset();
}

void Saved::keep(const Tensor& tensor) {
  if (!tensor) return;
  Runtime& runtime = tensor.runtime();
  if (runtime.stopped()) return;
  if (!runtime.hooks.empty() && runtime.hooks.back()) {
    packed_ = runtime.hooks.back()->pack(tensor);
    return;
  }
  if (tensor->replaceable) {
    tensor_ = tensor;
    return;
  }
  tensor_ = runtime.alias_of(tensor, tensor.shape(), tensor->stride);
  if (tensor->storage) {
    StorageInfo& info = runtime.info(tensor);
    if (info.category == Category::temporary) info.category = Category::activation;
  }
}

namespace {

/// The gradient is laid out as its leaf, dimensions of size 1 aside (accumulate_grad.h).
bool obeys_layout(const Tensor& gradient, const Tensor& variable) {
  if (!variable.dense()) return gradient.contiguous();
  for (int i = 0; i < gradient.rank(); ++i) {
    if (gradient.size(i) != 1 && gradient->stride[i] != variable->stride[i]) return false;
  }
  return true;
}

/// Keeps the first gradient of a leaf as it comes when nobody else holds it and its layout is the
/// leaf's; copies it otherwise; adds later ones in place
/// (pytorch torch/csrc/autograd/functions/accumulate_grad.h, accumulateGrad).
void accumulate(Node& node, Gradients& in, Gradients&) {
  Tensor variable = node.held_variable;
  Tensor& fresh = in[0];
  if (!fresh) return;
  Runtime& runtime = *node.runtime;
  if (!variable->grad) {
    if (obeys_layout(fresh, variable) && fresh.use_count() <= 1) {
      variable->grad = runtime.alias_of(fresh, fresh.shape(), fresh->stride);
    } else {
      variable->grad = runtime.empty_strided(variable.shape(), variable->stride, fresh.dtype());
      if (runtime.watched()) runtime.ran("clone", {fresh}, {variable->grad});
    }
    runtime.set_category(variable->grad, Category::gradient);
  } else if (runtime.watched()) {
    runtime.ran("accumulate_grad", {variable->grad, fresh}, {variable->grad});
  }
  if (runtime.after_accumulate && variable->parameter >= 0) {
    runtime.after_accumulate(*variable.get());
  }
}

}  // namespace

}  // namespace shardfit::tensor
