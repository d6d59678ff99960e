#include "graph/network_graph.h"

#include <algorithm>
#include <bit>

#include "base/units.h"
#include "tensor/runtime.h"

namespace shardfit::graph {

using model::CompiledClass;
using model::Value;
using model::ValueKind;
using model::ValueList;
using spec::Wiring;
using tensor::Tensor;

namespace {

void add_value(const Value& value, Words& words) {
  words.push_back(static_cast<std::uint32_t>(value.kind));
  switch (value.kind) {
    case ValueKind::none:
      return;
    case ValueKind::real:
      return add_number(std::bit_cast<std::uint64_t>(value.real), words);
    case ValueKind::dtype:
      return words.push_back(static_cast<std::uint32_t>(value.dtype));
    case ValueKind::list:
      add_number(value.list->size(), words);
      for (const Value& item : *value.list) add_value(item, words);
      return;
    case ValueKind::boolean:
    case ValueKind::integer:
      return add_number(static_cast<std::uint64_t>(value.integer), words);
    default:
      throw NotInParts();
  }
}

}  // namespace

NetworkGraph::NetworkGraph(model::Machine& machine, Detail detail)
    : machine_(machine),
      runtime_(machine.runtime),
      whole_(detail == Detail::operators),
      runner_(machine, forms_),
      ahead_{false, {}, PartBackward(&memory_)} {
  machine.networks = this;
}

Value NetworkGraph::run(const model::Module& network, const Value* inputs, std::size_t count) {
  if (root_ || !network.path.empty()) throw NotInParts();
  root_ = &network;
  const Wiring& wiring = *network.type->spec->wiring;
  calls_.reserve(wiring.parts.size());
  values_.reserve(wiring.parts.size() + count);
  reads_.reserve(wiring.reads.size());
  graph_.modules = {"", ""};  // the program, the network
  graph_.layers.reserve(wiring.parts.size() + 1);
  graph_.layers.emplace_back();
  std::vector<std::uint32_t> values;
  for (std::size_t i = 0; i < count; ++i) {
    if (inputs[i].kind != ValueKind::tensor) throw NotInParts();
    values.push_back(input(inputs[i].tensor));
  }
  return hand_out(scope(*network.type, "", values), wiring.one_result);
}

std::uint32_t NetworkGraph::input(const Tensor& tensor) {
  if (!tensor->storage || tensor.requires_grad() || tensor->producer >= 0) throw NotInParts();
  Known value;
  value.form = forms_.number(*tensor.get());
  value.body = bodies_++;
  body_shared_.push_back(false);
  value.storage = static_cast<std::uint32_t>(storages_.size());
  storages_.push_back({storage_ids_++, runtime_.info(tensor).bytes, {}, {}, false, false});
  value.producer = static_cast<std::uint32_t>(edges_.size());
  value.edge = value.producer;
  edges_.push_back(no_storage);
  values_.push_back(value);
  return static_cast<std::uint32_t>(values_.size() - 1);
}

std::vector<std::uint32_t> NetworkGraph::scope(const CompiledClass& type, const std::string& path,
                                               const std::vector<std::uint32_t>& inputs) {
  const Wiring& wiring = *type.spec->wiring;
  std::vector<std::uint32_t> values = inputs;
  values.reserve(inputs.size() + wiring.parts.size());
  std::string own;
  for (const Wiring::Part& part : wiring.parts) {
    own = path;
    if (!own.empty()) own += '.';
    own += part.name;
    values.push_back(part.loop ? loop(wiring, part, type, own, values)
                               : call(make_of(type, part.make), part, own,
                                      wiring.reads.data() + part.first, values));
  }
  std::vector<std::uint32_t> results;
  for (const std::uint32_t result : wiring.results) results.push_back(values[result]);
  return results;
}

std::uint32_t NetworkGraph::loop(const Wiring& wiring, const Wiring::Part& part,
                                 const CompiledClass& type, const std::string& path,
                                 const std::vector<std::uint32_t>& values) {
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t i = 0; i < part.reads; ++i) {
    inputs.push_back(values[wiring.reads[part.first + i].value]);
  }
  for (std::uint32_t i = 0; i < part.passes; ++i) {
    const CompiledClass& pass = *type.child_makers[wiring.passes[part.make + i]].callee;
    const std::string own = path + "." + std::to_string(i);
    if (whole_) graph_.modules.push_back(own);
    const bool outermost = loop_layer_ < 0;
    if (outermost) {
      loop_layer_ = static_cast<std::int32_t>(graph_.layers.size());
      graph_.layers.emplace_back().name = own;
    }
    inputs.front() = scope(pass, own, inputs).front();
    if (outermost) loop_layer_ = -1;
  }
  return inputs.front();
}

const NetworkGraph::Make& NetworkGraph::make_of(const CompiledClass& type, std::uint32_t number) {
  std::vector<const Make*>& makes = makes_of_[&type];
  if (makes.size() <= number) makes.resize(type.child_makers.size(), nullptr);
  const Make*& make = makes[number];
  if (make) return *make;
  const model::Code& maker = type.child_makers[number];
  Make fresh{maker.callee, machine_.takes_of(maker, *root_),
             static_cast<std::uint32_t>(makes_.size())};
  key_.clear();
  add_number(reinterpret_cast<std::uintptr_t>(maker.callee), key_);
  for (const Value& take : fresh.takes) add_value(take, key_);
  const auto [known, is_new] = make_keys_.add(key_);
  if (is_new) makes_.push_back(std::move(fresh));
  return *(make = &makes_[known]);
}

std::uint32_t NetworkGraph::call(const Make& make, const Wiring::Part& wired,
                                 const std::string& path, const Wiring::Read* reads,
                                 const std::vector<std::uint32_t>& values) {
  Call& made = calls_.emplace_back();
  made.make = &make;
  made.joined = wired.joined;
  made.one_layer = loop_layer_ >= 0;
  made.first_read = static_cast<std::uint32_t>(reads_.size());
  made.reads = wired.reads;
  bool last = true;
  for (std::uint32_t i = 0; i < wired.reads; ++i) {
    reads_.push_back(values[reads[i].value]);
    last = last && reads[i].goes != Wiring::Goes::stays;
  }
  look_at_inputs(made);
  made.part = &part_of(made, last);
  add_modules(made, path);
  made.result = result_of(made);
  return made.result;
}

void NetworkGraph::look_at_inputs(const Call& call) {
  inputs_.clear();
  first_body_.begin();
  first_storage_.begin();
  first_producer_.begin();
  first_slot_.begin();
  for (std::uint32_t i = 0; i < call.reads; ++i) {
    const Known& value = read(call, i);
    PartInput& input = inputs_.emplace_back();
    input.form = value.form;
    input.wants_gradient = value.slot >= 0;
    input.made = value.made;
    input.copies = value.copies;
    if (call.reads == 1) return;
    input.body = first_body_.of(value.body, i);
    input.storage = first_storage_.of(value.storage, i);
    input.producer = first_producer_.of(value.producer, i);
    input.slot = value.slot < 0 ? i : first_slot_.of(static_cast<std::uint32_t>(value.slot), i);
  }
}

PartRunner::Asked NetworkGraph::asked(const Call& call) const {
  return {call.make->type, &call.make->takes, call.joined, call.one_layer, whole_, &inputs_};
}

const Part& NetworkGraph::part_of(const Call& call, bool last) {
  key_.clear();
  key_.push_back(call.make->number);
  key_.push_back(static_cast<std::uint32_t>(call.joined) |
                 static_cast<std::uint32_t>(call.one_layer) << 1);
  for (const PartInput& input : inputs_) {
    key_.push_back(input.form);
    key_.push_back(static_cast<std::uint32_t>(input.wants_gradient) |
                   static_cast<std::uint32_t>(input.made) << 1 |
                   static_cast<std::uint32_t>(input.copies) << 2);
    if (call.reads == 1) break;
    key_.insert(key_.end(), {input.body, input.storage, input.producer, input.slot});
  }
  const auto [number, fresh] = part_keys_.add(key_);
  if (!fresh) return parts_[number];
  Part& part = parts_.emplace_back(&memory_);
  part.number = number;
  ahead_.ran = false;
  ahead_.backward = PartBackward(&memory_);
  alone([&] { runner_.forward(asked(call), part, last ? &ahead_ : nullptr); });
  if (ahead_.ran && backward_keys_.add(ahead_.gradients).second) {
    backwards_.push_back(std::move(ahead_.backward));
  }
  return part;
}

/// For so many layers more, and as many for each call to come as there were so far.
void NetworkGraph::make_room(std::size_t more) {
  const std::size_t layers = graph_.layers.size() + more;
  if (layers <= graph_.layers.capacity()) return;
  const double each = static_cast<double>(layers) / static_cast<double>(calls_.size());
  const auto all = static_cast<std::size_t>(each * static_cast<double>(calls_.capacity()));
  graph_.layers.reserve(std::max(2 * layers, all + all / 64));
}

void NetworkGraph::add_modules(Call& call, const std::string& path) {
  const auto first_module = static_cast<std::uint32_t>(graph_.modules.size());
  call.layer = static_cast<std::uint32_t>(
      call.one_layer ? loop_layer_ : static_cast<std::int32_t>(graph_.layers.size()));
  if (!call.one_layer) make_room(call.part->modules.size());
  for (const PartModule& module : call.part->modules) {
    if (whole_) graph_.modules.push_back(path + module.path);
    if (!call.one_layer) {
      std::string& name = graph_.layers.emplace_back().name;
      name.reserve(path.size() + module.path.size());
      name.append(path).append(module.path);
    }
    Layer& layer = call.one_layer ? graph_.layers[call.layer] : graph_.layers.back();
    layer.parameters = checked_add(layer.parameters, module.parameters);
    layer.parameter_bytes = checked_add(layer.parameter_bytes, module.parameter_bytes);
  }
  if (whole_) add_operators(call, path, first_module);
}

void NetworkGraph::write_over(const Call& call) {
  const auto number = static_cast<std::int32_t>(calls_.size() - 1);
  for (const auto& [input, op] : call.part->writes) {
    Shared& storage = storages_[read(call, input).storage];
    // The trace of the whole knows whether that may be, and what it was a view of.
    if (storage.kept || storage.viewed) throw NotInParts();
    if (storage.maker.call < 0) storage.maker = {number, op};
  }
}

std::uint32_t NetworkGraph::result_of(const Call& call) {
  const Part& part = *call.part;
  const auto number = static_cast<std::int32_t>(calls_.size() - 1);
  write_over(call);
  Known value;
  value.form = part.form;
  if (part.body.is_own()) {
    value.body = bodies_++;
    body_shared_.push_back(false);
  } else {
    value.body = read(call, part.body.input()).body;
    // Writing over a tensor gives all who hold it another history.
    if (part.in_place && body_shared_[value.body]) throw NotInParts();
    if (!part.in_place) body_shared_[value.body] = true;
  }
  if (part.storage.is_own()) {
    value.storage = static_cast<std::uint32_t>(storages_.size());
    storages_.push_back({storage_ids_ + static_cast<std::uint32_t>(part.storage.own()),
                         part.bytes,
                         part.maker < 0 ? By() : By{number, part.maker},
                         {}});
  } else {
    value.storage = read(call, part.storage.input()).storage;
  }
  if (part.view) storages_[value.storage].viewed = true;
  storage_ids_ += part.storages;
  value.edge = static_cast<std::uint32_t>(edges_.size());
  value.producer = value.edge;
  std::uint32_t edge = no_storage;
  if (part.producer.known() && !part.producer.is_own()) {
    const Known& from = read(call, part.producer.input());
    value.made = from.made;
    value.copies = from.copies;
    value.by = from.by;
    value.producer = from.producer;
    if (from.storage == value.storage) value.edge = from.edge;
  } else if (part.producer.known()) {
    const PartOperator& op = part.operators[part.producer.own()];
    value.made = true;
    value.copies = op.copies;
    value.by = {number, static_cast<std::int32_t>(part.producer.own())};
    for (std::uint32_t i = 0; whole_ && i < op.outputs; ++i) {
      const std::size_t output = part.links[op.first_link + op.inputs + i].own();
      if (part.tensors[output].storage == part.storage) edge = own_edges_[output];
    }
  } else if (!part.body.is_own()) {  // one of the network's inputs, as it is
    const Known& from = read(call, part.body.input());
    value.producer = from.producer;
    value.edge = from.edge;
  } else if (!part.storage.is_own()) {
    throw NotInParts();
  }
  edges_.push_back(edge);
  if (part.slot.known()) {
    value.slot = part.slot.is_own() ? static_cast<std::int32_t>(slots_made_++)
                                    : read(call, part.slot.input()).slot;
  }
  values_.push_back(value);
  for (const auto& [place, op] : part.keeps) {
    storages_[place.is_own() ? value.storage : read(call, place.input()).storage].kept = true;
  }
  return static_cast<std::uint32_t>(values_.size() - 1);
}

/// The number of a value's tensor, which it may get here.
std::uint32_t NetworkGraph::edge_of(const Known& value) {
  std::uint32_t& number = edges_[value.edge];
  if (number != no_storage) return number;
  number = static_cast<std::uint32_t>(graph_.tensors.size());
  TensorEdge& edge = graph_.tensors.emplace_back();
  const Form& form = forms_[value.form];
  edge.shape = form.shape;
  edge.dtype = form.dtype;
  edge.storage = storages_[value.storage].id;
  if (value.by.call >= 0) {
    edge.producer =
        static_cast<std::int32_t>(calls_[static_cast<std::size_t>(value.by.call)].first_operator) +
        value.by.op;
  }
  return number;
}

void NetworkGraph::add_operators(Call& call, const std::string& path, std::uint32_t first_module) {
  const Part& part = *call.part;
  call.first_operator = static_cast<std::uint32_t>(graph_.operators.size());
  own_edges_.clear();
  const auto add_own = [&](const PartTensor& tensor) {
    own_edges_.push_back(static_cast<std::uint32_t>(graph_.tensors.size()));
    TensorEdge& edge = graph_.tensors.emplace_back();
    if (!tensor.name.empty()) edge.name = path + tensor.name;
    edge.shape = tensor.shape;
    edge.dtype = tensor.dtype;
    edge.storage = no_storage;
    if (tensor.storage.known()) {
      edge.storage = tensor.storage.is_own()
                         ? storage_ids_ + static_cast<std::uint32_t>(tensor.storage.own())
                         : storages_[read(call, tensor.storage.input()).storage].id;
    }
    edge.parameter = tensor.parameter;
    if (tensor.producer >= 0) {
      edge.producer = static_cast<std::int32_t>(call.first_operator) + tensor.producer;
    }
  };
  for (std::size_t k = 0; k < part.operators.size(); ++k) {
    const PartOperator& op = part.operators[k];
    Operator& made = graph_.operators.emplace_back();
    made.kind = op.kind;
    made.module = first_module + op.module;
    made.layer = layer_in(call, k);
    made.view = op.view;
    made.first_link = static_cast<std::uint32_t>(graph_.links.size());
    made.inputs = op.inputs;
    made.outputs = op.outputs;
    made.forward = op.forward;
    for (std::uint32_t i = 0; i < op.inputs + op.outputs; ++i) {
      const Place link = part.links[op.first_link + i];
      if (!link.is_own()) {
        graph_.links.push_back(edge_of(read(call, link.input())));
        continue;
      }
      // They come in the order of the part's tensors.
      if (link.own() == own_edges_.size()) add_own(part.tensors[link.own()]);
      graph_.links.push_back(own_edges_[link.own()]);
    }
  }
}

}  // namespace shardfit::graph
