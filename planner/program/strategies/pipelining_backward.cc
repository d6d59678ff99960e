#include "program/strategies/pipelining_backward.h"

#include <algorithm>
#include <unordered_set>

#include "program/strategies/mesh.h"
#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program::pipelining {

using tensor::Edge;
using tensor::Node;
using tensor::NodeRef;
using tensor::Tensor;

namespace {

using Leads = std::unordered_map<const Node*, bool>;

/// For each leaf that is not on the way to the input: the nodes on that way right before its own
/// part of the graph, in the order in which they are found (get_param_groups).
std::unordered_map<const Node*, std::vector<NodeRef>> intermediates_of(const NodeRef& root,
                                                                       const Leads& on_way) {
  std::unordered_map<const Node*, std::vector<NodeRef>> found;
  std::unordered_set<const Node*> seen{root.get()};
  std::vector<NodeRef> todo{root};
  while (!todo.empty()) {
    const NodeRef node = todo.back();
    todo.pop_back();
    std::vector<Node*> own;  // behind this node, off the way
    for (const Edge& edge : node.get()->next) {
      if (!edge.node) continue;
      if (!on_way.at(edge.node.get())) {
        own.push_back(edge.node.get());
      } else if (seen.insert(edge.node.get()).second) {
        todo.push_back(edge.node);
      }
    }
    std::unordered_set<const Node*> behind;
    while (!own.empty()) {
      Node* next = own.back();
      own.pop_back();
      if (!behind.insert(next).second) continue;
      if (next->held_variable) found[next].push_back(node);
      for (const Edge& edge : next->next) {
        if (edge.node) own.push_back(edge.node.get());
      }
    }
  }
  return found;
}

/// Groups that share a node are one.
std::vector<WeightGroup> groups_of(const NodeRef& root, const Leads& on_way,
                                   const std::vector<model::Parameter>& parameters) {
  const auto intermediates = intermediates_of(root, on_way);
  std::vector<WeightGroup> groups;
  for (const model::Parameter& p : parameters) {
    const auto found = intermediates.find(p.tensor->accumulator);
    if (!p.tensor->accumulator || found == intermediates.end()) continue;
    WeightGroup* group = nullptr;
    for (const NodeRef& node : found->second) {
      for (WeightGroup& other : groups) {
        const auto& nodes = other.intermediates;
        const bool shares = std::any_of(nodes.begin(), nodes.end(),
                                        [&](const NodeRef& n) { return n.get() == node.get(); });
        if (shares) group = &other;
      }
    }
    if (!group) group = &groups.emplace_back();
    group->parameters.push_back(p.tensor);
    for (const NodeRef& node : found->second) {
      auto& nodes = group->intermediates;
      const bool known = std::any_of(nodes.begin(), nodes.end(),
                                     [&](const NodeRef& n) { return n.get() == node.get(); });
      if (!known) nodes.push_back(node);
    }
  }
  return groups;
}

}  // namespace

Tensor backward_of_input(const Tensor& end, const Tensor& gradient, const Tensor& input,
                         const std::vector<model::Parameter>& parameters,
                         std::vector<WeightGroup>& groups) {
  tensor::GradientsAsked asked;
  asked.roots = {{end->grad_fn, end->output}};
  asked.gradients = {gradient};
  asked.wanted = {input->accumulator};
  asked.retain = true;
  groups =
      groups_of(end->grad_fn, tensor::leading_to({end->grad_fn.get()}, asked.wanted), parameters);
  std::unordered_map<const Node*, std::vector<Tensor>> arriving;
  for (const WeightGroup& group : groups) {
    for (const NodeRef& node : group.intermediates) arriving[node.get()];
  }
  asked.arriving = &arriving;
  std::vector<Tensor> gradients = tensor::gradients_of(asked);
  for (WeightGroup& group : groups) {
    for (const NodeRef& node : group.intermediates) {
      group.gradients.push_back(std::move(arriving[node.get()]));
    }
  }
  // The input's own gradient is set too, and stays until the next step begins.
  if (!input->grad) {
    input->grad = gradients[0];
  } else {
    copied(end.runtime(), "add", {input->grad, gradients[0]}, {input->grad});
  }
  end->grad_fn = {};
  return std::move(gradients[0]);
}

void backward_of_weights(std::vector<WeightGroup>& groups) {
  // Names that live from one group to the next.
  std::vector<Tensor> made;
  std::vector<NodeRef> nodes;
  tensor::GradientsAsked asked;
  for (WeightGroup& group : groups) {
    tensor::GradientsAsked next;
    for (std::size_t i = 0; i < group.intermediates.size(); ++i) {
      const std::vector<Tensor>& arrived = group.gradients[i];
      for (std::size_t output = 0; output < arrived.size(); ++output) {
        if (!arrived[output]) continue;
        next.roots.push_back({group.intermediates[i], static_cast<std::uint32_t>(output)});
        next.gradients.push_back(arrived[output]);
      }
    }
    asked = std::move(next);
    nodes = std::exchange(group.intermediates, {});
    if (asked.roots.empty()) continue;
    for (const Tensor& p : group.parameters) asked.wanted.push_back(p->accumulator);
    made = tensor::gradients_of(asked);
    group.gradients.clear();
    for (std::size_t i = 0; i < made.size(); ++i) {
      const Tensor& parameter = group.parameters[i];
      if (!made[i]) continue;
      if (!parameter->grad) {
        parameter->grad = made[i];
      } else {
        copied(parameter.runtime(), "add", {parameter->grad, made[i]}, {parameter->grad});
      }
    }
  }
}

}  // namespace shardfit::program::pipelining
