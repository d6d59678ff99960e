#include <algorithm>

#include "base/units.h"
#include "graph/network_graph.h"
#include "graph/trace.h"

namespace shardfit::graph {

using model::Value;
using model::ValueList;
using tensor::Gradients;
using tensor::Storage;
using tensor::Tensor;
using tensor::TensorBody;

namespace {

thread_local NetworkGraph::Counts counted;

}  // namespace

NetworkGraph::Counts NetworkGraph::counts() { return counted; }

/// The one node that autograd has of the network.
struct NetworkGraph::Node : tensor::NodeExtra {
  NetworkGraph* graph = nullptr;
};

Value NetworkGraph::hand_out(const std::vector<std::uint32_t>& results, bool one) {
  loss_ = results.front();
  if (one || values_[loss_].slot < 0) throw NotInParts();
  ValueList list;
  for (const std::uint32_t result : results) {
    const Form& form = forms_[values_[result].form];
    list.push_back(Value::of(runtime_.empty_strided(form.shape, form.stride, form.dtype)));
  }
  const tensor::NodeRef node = runtime_.make_node("network", run_backward, 0);
  auto extra = std::make_unique<Node>();
  extra->graph = this;
  node->extra = std::move(extra);
  const Tensor& loss = list.front().tensor;
  loss->producer = 0;
  runtime_.attach(node, loss);
  return Value::of_list(std::move(list));
}

std::int32_t NetworkGraph::ran(const Compute& cost, tensor::Tensors, tensor::Tensors) {
  // Nothing runs beside the network but what comes behind its backward pass.
  if (cost.backward || reached_.empty()) throw NotInParts();
  return -1;
}

void NetworkGraph::backward_begins(const Tensor& root) {
  const bool ours = root->grad_fn && root->grad_fn->backward == run_backward;
  if (!ours || !reached_.empty()) throw NotInParts();
  reached_.assign(slots_made_, false);
}

void NetworkGraph::run_backward(tensor::Node& node, Gradients& in, Gradients&) {
  static_cast<Node&>(*node.extra).graph->backward(std::move(in[0]));
}

void NetworkGraph::backward(Tensor&& gradient) {
  if (!gradient) throw NotInParts();
  slots_.resize(slots_made_);
  const auto loss = static_cast<std::size_t>(values_[loss_].slot);
  slots_[loss] = std::move(gradient);
  reached_[loss] = true;
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    const std::int32_t slot = values_[call->result].slot;
    if (!call->part->slot.is_own() || slot < 0 || !reached_[static_cast<std::size_t>(slot)]) {
      continue;
    }
    call->reached = true;
    step_back(*call);
  }
  slots_.clear();
  kept_.clear();
}

void NetworkGraph::step_back(Call& call) {
  Tensor gradient = std::move(slots_[static_cast<std::size_t>(values_[call.result].slot)]);
  if (!gradient) throw NotInParts();
  for (const std::uint32_t input : call.part->reached) {
    reached_[static_cast<std::size_t>(read(call, input).slot)] = true;
  }
  write_gradients(call, gradient);
  const auto [number, fresh] = backward_keys_.add(key_);
  if (fresh) {
    look_at_inputs(call);
    PartBackward& made = backwards_.emplace_back(&memory_);
    alone([&] { runner_.backward(asked(call), *call.part, key_, made); });
  }
  call.backward = &backwards_[number];
  leave_gradients(call, gradient);
}

/// A body by number, counting who holds it; a mark in a field that no gradient uses.
std::uint32_t NetworkGraph::see_body(const Tensor& tensor) {
  if (!tensor) return no_body;
  if (tensor->parameter <= -2) {
    const auto number = static_cast<std::uint32_t>(-2 - tensor->parameter);
    ++uses_[number];
    return number;
  }
  if (!tensor->storage || tensor->parameter >= 0) throw NotInParts();
  const auto number = static_cast<std::uint32_t>(given_.size());
  tensor->parameter = -2 - static_cast<std::int32_t>(number);
  given_.push_back(tensor);
  uses_.push_back(2);  // who has it, and the list
  const auto fresh = static_cast<std::uint32_t>(at_hand_.size());
  const std::uint32_t storage = first_at_hand_.of(tensor->storage->id, fresh);
  if (storage == fresh) at_hand_.emplace_back(tensor->storage, 0);
  ++at_hand_[storage].second;
  storages_of_.push_back(storage);
  bases_.push_back(no_body);
  const std::uint32_t base = see_body(tensor->base);
  bases_[number] = base;
  return number;
}

void NetworkGraph::write_gradients(const Call& call, const Tensor& gradient) {
  given_.clear();
  uses_.clear();
  storages_of_.clear();
  bases_.clear();
  at_hand_.clear();
  first_at_hand_.begin();
  key_.clear();
  key_.push_back(call.part->number);
  key_.push_back(static_cast<std::uint32_t>(call.part->reached.size()) + 1);
  key_.push_back(see_body(gradient));
  for (const std::uint32_t input : call.part->reached) {
    key_.push_back(see_body(slots_[static_cast<std::size_t>(read(call, input).slot)]));
  }
  key_.push_back(static_cast<std::uint32_t>(given_.size()));
  for (std::size_t i = 0; i < given_.size(); ++i) {
    TensorBody& body = *given_[i].get();
    body.parameter = -1;
    // Its form stands where a producer would, which gradients here have not.
    if (body.producer < 0) body.producer = static_cast<std::int32_t>(forms_.number(body));
    key_.push_back(static_cast<std::uint32_t>(body.producer));
    key_.push_back(storages_of_[i]);
    key_.push_back(bases_[i] + 1);  // no_body becomes 0
    key_.push_back(body.references > uses_[i]);
  }
  key_.push_back(static_cast<std::uint32_t>(at_hand_.size()));
  for (const auto& [storage, bodies] : at_hand_) key_.push_back(storage->references > bodies);
}

/// Gradients as they are when the call's backward is over.
void NetworkGraph::leave_gradients(const Call& call, Tensor& gradient) {
  const PartBackward& backward = *call.backward;
  on_.resize(at_hand_.size() + backward.storages);
  for (std::size_t i = 0; i < given_.size(); ++i) on_[storages_of_[i]] = given_[i];
  for (const PartBackward::Body& body : backward.bodies) {
    if (body.given >= 0) {
      made_.push_back(given_[static_cast<std::size_t>(body.given)]);
      continue;
    }
    const Form& form = forms_[body.form];
    Tensor& on = on_[body.storage];
    if (on) {
      made_.push_back(runtime_.alias_of(on, form.shape, form.stride));
      made_.back()->dtype = form.dtype;
    } else {
      made_.push_back(on = runtime_.empty_strided(form.shape, form.stride, form.dtype));
    }
    made_.back()->producer = static_cast<std::int32_t>(body.form);
  }
  for (std::size_t i = 0; i < made_.size(); ++i) {
    const PartBackward::Body& body = backward.bodies[i];
    if (body.given < 0 && body.base >= 0) {
      made_[i]->base = made_[static_cast<std::size_t>(body.base)];
    }
  }
  for (const std::uint32_t storage : backward.kept) {
    const Tensor& on = on_[storage];
    kept_.push_back(runtime_.alias_of(on, on.shape(), on->stride));
  }
  for (std::size_t i = 0; i < backward.results.size(); ++i) {
    const std::int32_t result = backward.results[i];
    slots_[static_cast<std::size_t>(read(call, call.part->reached[i]).slot)] =
        result < 0 ? Tensor() : made_[static_cast<std::size_t>(result)];
  }
  gradient.reset();
  made_.clear();
  on_.clear();
  given_.clear();
}

std::uint32_t NetworkGraph::layer_in(const Call& call, std::size_t op) const {
  return call.one_layer ? call.layer : call.layer + call.part->operators[op].module;
}

std::uint32_t NetworkGraph::layer_of(By by) const {
  return layer_in(calls_[static_cast<std::size_t>(by.call)], static_cast<std::size_t>(by.op));
}

/// As Trace::count_saved, of what more than one part may keep.
void NetworkGraph::count_saved() {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (!call.reached) continue;
    for (const auto& [place, op] : call.part->keeps) {
      const By by =
          op.is_own() ? By{static_cast<std::int32_t>(i), op.at} : read(call, op.input()).by;
      if (by.call < 0) continue;
      const Known& value = place.is_own() ? values_[call.result] : read(call, place.input());
      Shared& storage = storages_[value.storage];
      if (storage.keeper.call < 0) {
        storage.keeper = by;
      } else if (layer_of(storage.keeper) != layer_of(by)) {
        storage.of_layers = true;
      }
    }
  }
  for (const Shared& storage : storages_) {
    if (storage.keeper.call < 0) continue;
    const bool made = storage.maker.call >= 0;
    const By keeper = storage.of_layers && made ? storage.maker : storage.keeper;
    const auto op_of = [this](By by) -> const PartOperator& {
      return calls_[static_cast<std::size_t>(by.call)]
          .part->operators[static_cast<std::size_t>(by.op)];
    };
    const std::int64_t copies = made && op_of(storage.maker).copies ? storage.bytes : 0;
    Layer& layer = graph_.layers[layer_of(keeper)];
    layer.saved_bytes = checked_add(layer.saved_bytes, storage.bytes);
    layer.weight_copy_bytes = checked_add(layer.weight_copy_bytes, copies);
    if (!whole_) continue;
    Operator& op = graph_.operators[calls_[static_cast<std::size_t>(keeper.call)].first_operator +
                                    static_cast<std::size_t>(keeper.op)];
    op.saved_bytes += storage.bytes;
    op.weight_copy_bytes += copies;
  }
}

/// What every operator does by itself, in their order.
void NetworkGraph::add_work() {
  for (const Call& call : calls_) {
    const Part& part = *call.part;
    for (std::size_t k = 0; k < part.operators.size(); ++k) {
      const PartOperator& op = part.operators[k];
      Layer& layer = graph_.layers[layer_in(call, k)];
      const Work backward = call.backward ? call.backward->work[k] : Work();
      const std::int64_t saved = call.reached ? op.saved_bytes : 0;
      const std::int64_t copies = call.reached ? op.weight_copy_bytes : 0;
      layer.saved_bytes = checked_add(layer.saved_bytes, saved);
      layer.weight_copy_bytes = checked_add(layer.weight_copy_bytes, copies);
      layer.operators += 1;
      layer.forward.flops += op.forward.flops;
      layer.forward.bytes += op.forward.bytes;
      layer.backward.flops += backward.flops;
      layer.backward.bytes += backward.bytes;
      if (!whole_) continue;
      Operator& made = graph_.operators[call.first_operator + k];
      made.backward = backward;
      made.saved_bytes += saved;
      made.weight_copy_bytes += copies;
    }
  }
}

ModelGraph NetworkGraph::finish() {
  if (reached_.empty()) throw NotInParts();
  count_saved();
  add_work();
  drop_empty_layers(graph_);
  counted.operators += static_cast<std::int64_t>(calls_.size());
  counted.run += static_cast<std::int64_t>(parts_.size());
  return std::move(graph_);
}

}  // namespace shardfit::graph
