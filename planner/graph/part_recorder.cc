#include "graph/part_recorder.h"

#include <algorithm>

#include "base/units.h"
#include "tensor/runtime.h"

namespace shardfit::graph {

using tensor::Node;
using tensor::Tensor;

PartRecorder::PartRecorder(tensor::Runtime& runtime)
    : runtime_(runtime),
      modules_(static_cast<std::uint32_t>(runtime.program.modules.size())),
      first_storage_(static_cast<std::uint32_t>(runtime.program.storages.size())),
      instructions_(static_cast<std::uint32_t>(runtime.program.instructions.size())) {}

void PartRecorder::begin(const std::vector<PartInput>& inputs) {
  inputs_ = &inputs;
  first_node_ = runtime_.next_sequence;
  without_storage_ = {};
  seen_.clear();
  ids_.clear();
  makers_.clear();
  others_.clear();
  operators_.clear();
  links_.clear();
  tensors_.clear();
  writes_.clear();
  keeps_.clear();
  reached_.clear();
  whole_ = false;
  current_ = -1;
}

void PartRecorder::end() {
  runtime_.program.modules.resize(modules_);
  runtime_.program.storages.resize(first_storage_);
  runtime_.program.instructions.resize(instructions_);
}

PartRecorder::Seen& PartRecorder::seen(std::uint32_t storage) {
  if (storage == no_storage) return without_storage_;
  if (storage < first_storage_) throw NotInParts();  // none of the part's
  const std::size_t at = storage - first_storage_;
  if (seen_.size() <= at) seen_.resize(at + 1);
  return seen_[at];
}

const PartRecorder::Other* PartRecorder::find_other(std::int32_t producer, std::uint32_t storage) {
  for (std::uint32_t at = seen(storage).others; at != none; at = others_[at].next) {
    if (others_[at].producer == producer) return &others_[at];
  }
  return nullptr;
}

Place PartRecorder::other_place(std::int32_t producer, std::uint32_t storage, Place place) {
  if (const Other* known = find_other(producer, storage)) return known->place;
  Seen& on = seen(storage);
  others_.push_back({producer, place, on.others});
  on.others = static_cast<std::uint32_t>(others_.size() - 1);
  return place;
}

void PartRecorder::see_inputs(const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const PartInput& input = (*inputs_)[i];
    const std::uint32_t id = inputs[i]->storage->id;
    if (Place& place = seen(id).place; !place.known()) place = Place::of_input(input.storage);
    const std::size_t first =
        other_place(inputs[i]->producer, id, Place::of_input(i)).input();
    // What one operator made over one storage is one tensor of the graph.
    const PartInput& same = (*inputs_)[first];
    if (same.producer != input.producer || same.storage != input.storage) throw NotInParts();
  }
}

Place PartRecorder::storage_place(std::uint32_t storage) {
  Place& place = seen(storage).place;
  if (!place.known()) {
    place = Place::own(ids_.size());
    ids_.push_back(storage);
    makers_.push_back(-1);
  }
  return place;
}

Place PartRecorder::operator_place(std::int32_t number) const {
  const auto count = static_cast<std::int32_t>(inputs_->size());
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
  if (const Other* known = find_other(tensor->producer, id)) return known->place;
  // A tensor of another part's operator that is none of what was read.
  if (producer.known()) throw NotInParts();
  return other_place(-1, id, new_tensor(tensor, -1));
}

std::int32_t PartRecorder::ran(const Compute& cost, tensor::Tensors inputs,
                               tensor::Tensors outputs) {
  const auto count = static_cast<std::int32_t>(inputs_->size());
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
      op.copies = op.copies && (*inputs_)[read.input()].copies;
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

/// As Trace::backward_begins does for the whole, by sequence number too.
void PartRecorder::read_nodes(const Tensor& result) {
  if (!result->grad_fn) return;
  nodes_.assign(runtime_.next_sequence - first_node_, nullptr);
  const auto see = [this](const Node* node) {
    if (!node || node->sequence == tensor::accumulate_sequence) return;
    if (node->sequence < first_node_) throw NotInParts();
    const Node*& place = nodes_[node->sequence - first_node_];
    if (!place) open_.push_back(place = node);
  };
  see(result->grad_fn.get());
  while (!open_.empty()) {
    const Node* node = open_.back();
    open_.pop_back();
    for (const tensor::Edge& edge : node->next) see(edge.node.get());
  }
  for (const Node* node : nodes_) {
    if (!node) continue;
    if (const Leaving* leaving = leaving_of(*node)) {
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
  const Place given = storage_place(result->storage->id);
  counts_.assign(ids_.size(), {});
  for (const Keep& keep : keeps_) {
    const Place operation = operator_place(keep.operation);
    if (!operation.known()) continue;
    const Place storage = storage_place(keep.storage);
    if (!storage.is_own() || storage == given) {
      part.keeps.emplace_back(storage, operation);
      continue;
    }
    if (!operation.is_own()) throw NotInParts();
    counts_.resize(ids_.size());
    Count& count = counts_[storage.own()];
    const auto op = static_cast<std::int32_t>(operation.own());
    if (count.operation < 0) {
      count.operation = op;
    } else if (!one_layer && operators_[static_cast<std::size_t>(count.operation)].module !=
                                 operators_[operation.own()].module) {
      count.shared = true;
    }
  }
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i].operation < 0) continue;
    const std::int32_t maker = makers_[i];
    const std::int32_t keeper = counts_[i].shared && maker >= 0 ? maker : counts_[i].operation;
    PartOperator& op = operators_[static_cast<std::size_t>(keeper)];
    const std::int64_t bytes = runtime_.program.storages[ids_[i]].bytes;
    op.saved_bytes += bytes;
    if (maker >= 0 && operators_[static_cast<std::size_t>(maker)].copies) {
      op.weight_copy_bytes += bytes;
    }
  }
}

void PartRecorder::list_modules(const model::Machine& machine, bool named, Part& part) {
  const auto& paths = runtime_.program.modules;
  const std::size_t above = machine.modules.front().path.size();
  part.modules.reserve(paths.size() - modules_);
  for (std::size_t i = modules_; i < paths.size(); ++i) {
    part.modules.push_back({paths[i].substr(above), 0, 0});
    // Modules in a list may be a layer together.
    if (part.modules.back().path.find_first_of("0123456789") != std::string::npos) {
      throw NotInParts();
    }
  }
  parameters_.clear();
  for (const model::Module& module : machine.modules) {
    PartModule& owner = part.modules[module.label - modules_];
    const auto& own = module.type->spec->parameters;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Tensor& tensor = module.tensors[i];
      if (!tensor) continue;
      if (!tensor->storage) throw NotInParts();
      // One that several modules share counts where it comes first.
      if (std::find(parameters_.begin(), parameters_.end(), tensor.get()) != parameters_.end()) {
        continue;
      }
      parameters_.push_back(tensor.get());
      const std::int64_t bytes = checked_multiply(tensor.count(), element_size(tensor.dtype()));
      owner.parameters = checked_add(owner.parameters, tensor.count());
      owner.parameter_bytes = checked_add(owner.parameter_bytes, bytes);
      if (!named) continue;
      const Other* known = find_other(-1, tensor->storage->id);
      if (known && known->place.is_own()) {
        tensors_[known->place.own()].name = part.modules[module.label - modules_].path + "." + own[i].name;
      }
    }
  }
}

void PartRecorder::finish(const model::Machine& machine, const Tensor& result,
                          const PartRunner::Asked& asked, Part& part) {
  if (!result->storage || result->on_host || result->leaf_requires_grad) throw NotInParts();
  const StorageInfo& info = runtime_.program.storages[result->storage->id];
  if (info.category == Category::parameter) throw NotInParts();
  read_nodes(result);
  count_saved(asked.one_layer, result, part);
  list_modules(machine, asked.all, part);
  part.storage = storage_place(result->storage->id);
  part.producer = operator_place(result->producer);
  part.bytes = info.bytes;
  if (part.storage.is_own()) part.maker = makers_[part.storage.own()];
  part.storages = static_cast<std::uint32_t>(ids_.size());
  part.operators.assign(operators_.begin(), operators_.end());
  part.writes.assign(writes_.begin(), writes_.end());
  part.reached.assign(reached_.begin(), reached_.end());
  if (!asked.all) return;
  part.links.assign(links_.begin(), links_.end());
  part.tensors.assign(tensors_.begin(), tensors_.end());
}

}  // namespace shardfit::graph
