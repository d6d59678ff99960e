#include "graph/trace.h"

#include <algorithm>
#include <cctype>

#include "base/diagnostic.h"
#include "base/units.h"
#include "tensor/runtime.h"

namespace shardfit::graph {

using tensor::Node;
using tensor::Tensor;

namespace {

std::uint32_t storage_of(const Tensor& tensor) {
  return tensor->storage ? tensor->storage->id : no_storage;
}

std::uint64_t key_of(std::int32_t producer, std::uint32_t storage) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(producer)) << 32 | storage;
}

/// The part of a module's path that names its layer: up to the first number, or all of it.
std::string_view layer_name(std::string_view path) {
  std::size_t start = 0;
  while (start < path.size()) {
    const std::size_t dot = std::min(path.find('.', start), path.size());
    const bool number =
        dot > start &&
        std::all_of(path.begin() + static_cast<long>(start), path.begin() + static_cast<long>(dot),
                    [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
    if (number) return path.substr(0, dot);
    start = dot + 1;
  }
  return path;
}

std::string_view owner_of(std::string_view parameter) {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? "" : parameter.substr(0, dot);
}

void add(Layer& sum, const Layer& part) {
  sum.parameters = checked_add(sum.parameters, part.parameters);
  sum.parameter_bytes = checked_add(sum.parameter_bytes, part.parameter_bytes);
  sum.saved_bytes = checked_add(sum.saved_bytes, part.saved_bytes);
  sum.weight_copy_bytes = checked_add(sum.weight_copy_bytes, part.weight_copy_bytes);
  sum.operators += part.operators;
  sum.forward.flops += part.forward.flops;
  sum.forward.bytes += part.forward.bytes;
  sum.backward.flops += part.backward.flops;
  sum.backward.bytes += part.backward.bytes;
}

bool empty(const Layer& layer) {
  return layer.parameters == 0 && layer.operators == 0 && layer.saved_bytes == 0;
}

}  // namespace

WrittenOver::WrittenOver(const std::string& writer, const std::string& keeper)
    : ModelError({}, writer,
                 quoted(writer) + " writes over what " + quoted(keeper) +
                     " keeps for its backward") {}

void drop_empty_layers(ModelGraph& graph) {
  std::vector<std::uint32_t> moved(graph.layers.size(), 0);
  std::size_t left = 0;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (empty(graph.layers[i])) continue;
    moved[i] = static_cast<std::uint32_t>(left);
    if (left != i) graph.layers[left] = std::move(graph.layers[i]);
    ++left;
  }
  graph.layers.resize(left);
  for (Operator& op : graph.operators) op.layer = moved[op.layer];
  for (const Layer& layer : graph.layers) add(graph.total, layer);
}

std::uint32_t Trace::new_number(const Tensor& tensor, std::int32_t producer) {
  const auto number = static_cast<std::uint32_t>(graph_.tensors.size());
  TensorEdge& edge = graph_.tensors.emplace_back();
  edge.shape = tensor.shape();
  edge.dtype = tensor.dtype();
  edge.storage = storage_of(tensor);
  edge.producer = producer;
  if (edge.storage != no_storage && producer < 0) {
    edge.parameter = runtime_.program.storages[edge.storage].category == Category::parameter;
  }
  return number;
}

std::uint32_t Trace::tensor_number(const Tensor& tensor) {
  const std::uint32_t storage = storage_of(tensor);
  if (tensor->producer >= 0) {
    const Operator& op = graph_.operators[static_cast<std::size_t>(tensor->producer)];
    const auto outputs = graph_.outputs_of(op);
    const auto it = std::find_if(outputs.rbegin(), outputs.rend(), [&](std::uint32_t output) {
      return graph_.tensors[output].storage == storage;
    });
    if (it != outputs.rend()) return *it;
  }
  const auto [it, fresh] = numbers_.emplace(key_of(tensor->producer, storage), 0);
  if (fresh) it->second = new_number(tensor, tensor->producer);
  return it->second;
}

std::int32_t Trace::ran(const Compute& cost, tensor::Tensors inputs, tensor::Tensors outputs) {
  if (cost.backward || whole_) {
    if (cost.backward && current_ >= 0) {
      Operator& op = graph_.operators[static_cast<std::size_t>(current_)];
      op.backward.flops += cost.flops;
      op.backward.bytes += cost.bytes;
    }
    return current_;
  }
  const auto number = static_cast<std::int32_t>(graph_.operators.size());
  Operator op;
  op.kind = cost.kind;
  op.module = cost.module;
  op.view = cost.bytes == 0;
  op.forward = {cost.flops, cost.bytes};
  op.first_link = static_cast<std::uint32_t>(graph_.links.size());
  for (const Tensor& tensor : inputs) {
    if (tensor) graph_.links.push_back(tensor_number(tensor));
  }
  op.inputs = static_cast<std::uint32_t>(graph_.links.size()) - op.first_link;
  for (const Tensor& tensor : outputs) {
    graph_.links.push_back(new_number(tensor, number));
    ++op.outputs;
    const std::uint32_t storage = storage_of(tensor);
    if (storage == no_storage) continue;
    const bool over = !op.view && std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& t) {
      return t && storage_of(t) == storage;
    });
    if (over) writes_.emplace(storage, Write{number, runtime_.next_sequence});
    if (maker_.size() <= storage) maker_.resize(storage + std::size_t{1}, -1);
    if (maker_[storage] < 0 && !op.view) maker_[storage] = number;
  }
  graph_.operators.push_back(op);
  return number;
}

void Trace::backward_begins(const Tensor& root) {
  if (whole_ || !root->grad_fn) return;
  whole_ = true;
  // By sequence number, which all but the accumulating nodes have to themselves; those save
  // nothing.
  std::vector<const Node*> nodes(root->grad_fn->sequence + 1, nullptr);
  std::vector<const Node*> open{root->grad_fn.get()};
  nodes.back() = open.front();
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const tensor::Edge& edge : node->next) {
      if (!edge.node || edge.node->sequence == tensor::accumulate_sequence) continue;
      if (edge.node->sequence >= nodes.size()) nodes.resize(edge.node->sequence + 1, nullptr);
      const Node*& place = nodes[edge.node->sequence];
      if (!place) open.push_back(place = edge.node.get());
    }
  }
  for (const Node* node : nodes) {
    if (!node) continue;
    if (!writes_.empty()) check_writes(*node);
    for (int i = 0; i < static_cast<int>(node->saved.size()); ++i) {
      const Tensor saved = node->load(i);
      if (!saved || !saved->storage) continue;
      const StorageInfo& info = runtime_.program.storages[saved->storage->id];
      if (info.category == Category::parameter) continue;
      keepers_.push_back({saved->storage->id, node->operation});
    }
  }
}

void Trace::check_writes(const Node& node) const {
  for (int i = 0; i < static_cast<int>(node.saved.size()); ++i) {
    const Tensor saved = node.load(i);
    if (!saved || !saved->storage) continue;
    const auto [first, last] = writes_.equal_range(saved->storage->id);
    for (auto write = first; write != last; ++write) {
      const auto& [operation, sequence] = write->second;
      if (sequence <= node.sequence || operation == node.operation) continue;
      const auto& modules = runtime_.program.modules;
      const std::string& writer =
          modules[graph_.operators[static_cast<std::size_t>(operation)].module];
      throw WrittenOver(writer, modules[node.module]);
    }
  }
}

void Trace::node_runs(const Node& node) {
  if (node.operation >= 0) current_ = node.operation;
}

std::uint32_t Trace::layer_of(std::uint32_t module) {
  if (layer_of_module_.size() <= module) layer_of_module_.resize(graph_.modules.size(), no_storage);
  std::uint32_t& layer = layer_of_module_[module];
  if (layer != no_storage) return layer;
  const std::string_view name = layer_name(graph_.modules[module]);
  layer = static_cast<std::uint32_t>(
      layer_numbers_.add(name, static_cast<std::int32_t>(graph_.layers.size())));
  if (layer == graph_.layers.size()) graph_.layers.emplace_back().name = name;
  return layer;
}

/// Operators that read parameters and nothing else make copies of them, whatever the batch.
void Trace::mark_weight_copies() {
  copies_weights_.assign(graph_.operators.size(), false);
  for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
    const Operator& op = graph_.operators[i];
    bool only = op.inputs > 0;
    for (const std::uint32_t input : graph_.inputs_of(op)) {
      const TensorEdge& tensor = graph_.tensors[input];
      const bool copied =
          tensor.producer >= 0 && copies_weights_[static_cast<std::size_t>(tensor.producer)];
      only = only && (tensor.parameter || copied);
    }
    copies_weights_[i] = only;
  }
}

void Trace::count_saved() {
  mark_weight_copies();
  struct Count {
    std::int32_t operation = -1;  // the first that saves it
    bool shared = false;          // by several layers
  };
  std::vector<Count> storages(runtime_.program.storages.size());
  for (const Keeper& keeper : keepers_) {
    if (keeper.operation < 0) continue;
    Count& count = storages[keeper.storage];
    if (count.operation < 0) {
      count.operation = keeper.operation;
      continue;
    }
    const auto layer = [this](std::int32_t operation) {
      return graph_.operators[static_cast<std::size_t>(operation)].layer;
    };
    if (layer(count.operation) != layer(keeper.operation)) count.shared = true;
  }
  for (std::size_t storage = 0; storage < storages.size(); ++storage) {
    const Count& count = storages[storage];
    if (count.operation < 0) continue;
    const std::int32_t maker = storage < maker_.size() ? maker_[storage] : -1;
    const std::int32_t keeper = count.shared && maker >= 0 ? maker : count.operation;
    Operator& op = graph_.operators[static_cast<std::size_t>(keeper)];
    const std::int64_t bytes = runtime_.program.storages[storage].bytes;
    op.saved_bytes += bytes;
    if (maker >= 0 && copies_weights_[static_cast<std::size_t>(maker)]) {
      op.weight_copy_bytes += bytes;
    }
  }
}

void Trace::make_layers() {
  for (std::uint32_t m = 0; m < graph_.modules.size(); ++m) layer_of(m);
  for (Operator& op : graph_.operators) op.layer = layer_of(op.module);
}

ModelGraph Trace::finish(const std::vector<model::Parameter>& parameters) {
  graph_.modules = runtime_.program.modules;
  make_layers();
  count_saved();
  for (const model::Parameter& p : parameters) {
    const auto number = layer_numbers_.find(layer_name(owner_of(p.path)));
    Layer& layer = graph_.layers[static_cast<std::size_t>(number.value_or(0))];
    const std::int64_t bytes = checked_multiply(p.tensor.count(), element_size(p.tensor.dtype()));
    layer.parameters = checked_add(layer.parameters, p.tensor.count());
    layer.parameter_bytes = checked_add(layer.parameter_bytes, bytes);
    const auto edge = numbers_.find(key_of(-1, storage_of(p.tensor)));
    if (edge != numbers_.end()) graph_.tensors[edge->second].name = p.path;
  }
  for (const Operator& op : graph_.operators) {
    Layer part;
    part.saved_bytes = op.saved_bytes;
    part.weight_copy_bytes = op.weight_copy_bytes;
    part.operators = 1;
    part.forward = op.forward;
    part.backward = op.backward;
    add(graph_.layers[op.layer], part);
  }
  drop_empty_layers(graph_);
  return std::move(graph_);
}

}  // namespace shardfit::graph
