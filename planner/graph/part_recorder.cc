#include "graph/part_recorder.h"

#include <algorithm>
#include <unordered_set>

#include "base/units.h"
#include "tensor/runtime.h"

namespace shardfit::graph {

using tensor::Node;
using tensor::Tensor;

namespace {

std::uint64_t key_of(std::int32_t producer, std::uint32_t storage) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(producer)) << 32 | storage;
}

}  // namespace

void PartRecorder::see_inputs(const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const PartInput& input = inputs_[i];
    const std::uint32_t id = inputs[i]->storage->id;
    storages_.emplace(id, Place::of_input(input.storage));
    const auto [known, fresh] =
        others_.emplace(key_of(inputs[i]->producer, id), Place::of_input(i));
    // What one operator made over one storage is one tensor of the graph.
    const std::size_t first = known->second.input();
    if (!fresh &&
        (inputs_[first].producer != input.producer || inputs_[first].storage != input.storage)) {
      throw NotInParts();
    }
  }
}

Place PartRecorder::storage_place(std::uint32_t storage) {
  const auto [place, fresh] = storages_.emplace(storage, Place::own(ids_.size()));
  if (fresh) {
    ids_.push_back(storage);
    makers_.push_back(-1);
  }
  return place->second;
}

Place PartRecorder::operator_place(std::int32_t number) const {
  const auto count = static_cast<std::int32_t>(inputs_.size());
  if (number < 0) return {};
  return number < count ? Place::of_input(static_cast<std::size_t>(number))
                        : Place::own(static_cast<std::size_t>(number - count));
}

Place PartRecorder::new_tensor(const Tensor& tensor, std::int32_t producer) {
  PartTensor& made = tensors_.emplace_back();
  made.shape = tensor.shape();
  made.dtype = tensor.dtype();
  made.producer = producer;
  if (tensor->storage) {
    made.storage = storage_place(tensor->storage->id);
    made.parameter = producer < 0 &&
                     runtime_.program.storages[tensor->storage->id].category == Category::parameter;
  }
  return Place::own(tensors_.size() - 1);
}

Place PartRecorder::link(const Tensor& tensor) {
  const Place producer = operator_place(tensor->producer);
  const std::uint32_t id = tensor->storage ? tensor->storage->id : no_storage;
  if (producer.known() && producer.is_own()) {
    const Place storage = tensor->storage ? storage_place(id) : Place();
    const PartOperator& op = operators_[producer.own()];
    for (std::uint32_t i = op.outputs; i-- > 0;) {
      const Place output = links_[op.first_link + op.inputs + i];
      if (tensors_[output.own()].storage == storage) return output;
    }
  }
  const auto known = others_.find(key_of(tensor->producer, id));
  if (known != others_.end()) return known->second;
  // A tensor of another part's operator that is none of what was read.
  if (producer.known()) throw NotInParts();
  const Place made = new_tensor(tensor, -1);
  others_.emplace(key_of(tensor->producer, id), made);
  return made;
}

std::int32_t PartRecorder::ran(const Compute& cost, tensor::Tensors inputs,
                               tensor::Tensors outputs) {
  const auto count = static_cast<std::int32_t>(inputs_.size());
  if (whole_ || cost.backward) {
    if (!cost.backward || (cost.flops == 0 && cost.bytes == 0)) return current_;
    if (current_ < count) throw NotInParts();
    Work& work = work_[static_cast<std::size_t>(current_ - count)];
    work.flops += cost.flops;
    work.bytes += cost.bytes;
    return current_;
  }
  if (cost.module < modules_) throw NotInParts();
  const auto number = static_cast<std::int32_t>(operators_.size());
  PartOperator op;
  op.kind = cost.kind;
  op.module = cost.module - modules_;
  op.view = cost.bytes == 0;
  op.forward = {cost.flops, cost.bytes};
  op.first_link = static_cast<std::uint32_t>(links_.size());
  for (const Tensor& tensor : inputs) {
    if (tensor) links_.push_back(link(tensor));
  }
  op.inputs = static_cast<std::uint32_t>(links_.size()) - op.first_link;
  op.copies = op.inputs > 0;
  for (std::uint32_t i = 0; i < op.inputs; ++i) {
    const Place read = links_[op.first_link + i];
    if (!read.is_own()) {
      op.copies = op.copies && inputs_[read.input()].copies;
      continue;
    }
    const PartTensor& tensor = tensors_[read.own()];
    op.copies =
        op.copies &&
        (tensor.parameter ||
         (tensor.producer >= 0 && operators_[static_cast<std::size_t>(tensor.producer)].copies));
  }
  for (const Tensor& tensor : outputs) {
    links_.push_back(new_tensor(tensor, number));
    ++op.outputs;
    const Place storage = tensors_.back().storage;
    if (!storage.known() || op.view) continue;
    if (!storage.is_own()) {
      writes_.emplace_back(static_cast<std::uint32_t>(storage.input()), number);
    } else if (makers_[storage.own()] < 0) {
      makers_[storage.own()] = number;
    }
  }
  operators_.push_back(op);
  return number + count;
}

void PartRecorder::backward_begins(const Tensor&) {
  whole_ = true;
  current_ = -1;
  work_.assign(operators_.size(), {});
}

void PartRecorder::node_runs(const Node& node) {
  if (node.operation >= 0) current_ = node.operation;
}

/// As Trace::backward_begins does for the whole.
void PartRecorder::read_nodes(const Tensor& result) {
  if (!result->grad_fn) return;
  std::vector<const Node*> open{result->grad_fn.get()}, nodes = open;
  std::unordered_set<const Node*> seen{open.front()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const tensor::Edge& edge : node->next) {
      const Node* next = edge.node.get();
      if (!next || next->sequence == tensor::accumulate_sequence) continue;
      if (!seen.insert(next).second) continue;
      nodes.push_back(next);
      open.push_back(next);
    }
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
  for (const Node* node : nodes) {
    if (const auto* leaving = dynamic_cast<const Leaving*>(node->extra.get())) {
      reached_.push_back(leaving->input);
      continue;
    }
    for (int i = 0; i < static_cast<int>(node->saved.size()); ++i) {
      const Tensor saved = node->load(i);
      if (!saved || !saved->storage) continue;
      const std::uint32_t id = saved->storage->id;
      if (runtime_.program.storages[id].category == Category::parameter) continue;
      keeps_.push_back({id, node->operation});
    }
  }
}

/// What the part alone sees is counted here, once a storage.
void PartRecorder::count_saved(bool one_layer, const Tensor& result, Part& part) {
  struct Count {
    std::int32_t operation = -1;
    bool shared = false;
  };
  const Place given = storage_place(result->storage->id);
  std::vector<Count> counts(ids_.size());
  for (const Keep& keep : keeps_) {
    const Place operation = operator_place(keep.operation);
    if (!operation.known()) continue;
    const Place storage = storage_place(keep.storage);
    if (!storage.is_own() || storage == given) {
      part.keeps.emplace_back(storage, operation);
      continue;
    }
    if (!operation.is_own()) throw NotInParts();
    counts.resize(ids_.size());
    Count& count = counts[storage.own()];
    const auto op = static_cast<std::int32_t>(operation.own());
    if (count.operation < 0) {
      count.operation = op;
    } else if (!one_layer && operators_[static_cast<std::size_t>(count.operation)].module !=
                                 operators_[operation.own()].module) {
      count.shared = true;
    }
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].operation < 0) continue;
    const std::int32_t maker = makers_[i];
    const std::int32_t keeper = counts[i].shared && maker >= 0 ? maker : counts[i].operation;
    PartOperator& op = operators_[static_cast<std::size_t>(keeper)];
    const std::int64_t bytes = runtime_.program.storages[ids_[i]].bytes;
    op.saved_bytes += bytes;
    if (maker >= 0 && operators_[static_cast<std::size_t>(maker)].copies) {
      op.weight_copy_bytes += bytes;
    }
  }
}

void PartRecorder::list_modules(const model::Machine& machine, const model::Module& module,
                                Part& part) {
  const auto& paths = runtime_.program.modules;
  for (std::size_t i = modules_; i < paths.size(); ++i) {
    part.modules.push_back({paths[i].substr(module.path.size()), 0, 0});
    // Modules in a list may be a layer together.
    if (part.modules.back().path.find_first_of("0123456789") != std::string::npos) {
      throw NotInParts();
    }
  }
  for (const model::Parameter& p : machine.parameters(module)) {
    PartModule& owner = part.modules[p.module->label - modules_];
    const std::int64_t bytes = checked_multiply(p.tensor.count(), element_size(p.tensor.dtype()));
    owner.parameters = checked_add(owner.parameters, p.tensor.count());
    owner.parameter_bytes = checked_add(owner.parameter_bytes, bytes);
    if (!p.tensor->storage) throw NotInParts();
    const auto known = others_.find(key_of(-1, p.tensor->storage->id));
    if (known != others_.end() && known->second.is_own()) {
      tensors_[known->second.own()].name = p.path.substr(module.path.size());
    }
  }
}

void PartRecorder::finish(const model::Machine& machine, const model::Module& module,
                          const Tensor& result, bool one_layer, Part& part) {
  if (!result->storage || result->on_host || result->leaf_requires_grad) throw NotInParts();
  const StorageInfo& info = runtime_.program.storages[result->storage->id];
  if (info.category == Category::parameter) throw NotInParts();
  read_nodes(result);
  count_saved(one_layer, result, part);
  list_modules(machine, module, part);
  part.storage = storage_place(result->storage->id);
  part.producer = operator_place(result->producer);
  part.bytes = info.bytes;
  if (part.storage.is_own()) part.maker = makers_[part.storage.own()];
  part.storages = static_cast<std::uint32_t>(ids_.size());
  part.operators = std::move(operators_);
  part.links = std::move(links_);
  part.tensors = std::move(tensors_);
  part.writes = std::move(writes_);
  part.reached = std::move(reached_);
}

}  // namespace shardfit::graph
