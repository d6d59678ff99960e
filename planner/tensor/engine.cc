#include "tensor/engine.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// A node whose gradients have all arrived. Deeper (nested) passes come first, then the highest
/// sequence number (engine.h, CompareNodeTaskTime).
struct Ready {
  explicit Ready(NodeRef ready, int at)
      : node(std::move(ready)), sequence(node->sequence), depth(at) {}
  NodeRef node;
  std::uint64_t sequence;
  int depth;
};
struct Later {
  bool operator()(const Ready& a, const Ready& b) const {
    return a.depth == b.depth ? a.sequence < b.sequence : a.depth < b.depth;
  }
};
using Queue = std::priority_queue<Ready, std::vector<Ready>, Later>;

void count_dependencies(const std::vector<Edge>& roots, std::uint64_t pass) {
  std::vector<Node*> todo;
  todo.reserve(16);
  const auto see = [&](Node* node) {
    if (node->pass == pass) return;
    node->pass = pass;
    node->dependencies = 0;
    todo.push_back(node);
  };
  for (const Edge& root : roots) see(root.node.get());
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    for (const Edge& edge : node->next) {
      Node* next = edge.node.get();
      if (!next) continue;
      see(next);
      ++next->dependencies;
    }
  }
}

/// Adds a gradient to those that wait for a node: in place where nobody else holds the first
/// (input_buffer.cpp, accumulate and can_accumulate_inplace).
void add_pending(Node& node, std::uint32_t place, Tensor&& gradient) {
  if (node.pending.size() < node.inputs.size()) node.pending.resize(node.inputs.size());
  Tensor& slot = node.pending[place];
  if (!gradient) return;
  if (!slot) {
    slot = std::move(gradient);
    return;
  }
  const auto in_place = [](const Tensor& t) {
    return t.dense() && t.use_count() == 1 && t->storage && t->storage->references == 1;
  };
  Runtime& runtime = *node.runtime;
  const Scoped<Label> label(runtime.label, {"accumulate_gradients", node.module, true});
  const Scoped<std::uint8_t> on(runtime.current_stream, node.stream);
  if (!node.subclass_gradients && in_place(slot) && slot.dtype() == gradient.dtype()) {
    if (runtime.watched()) runtime.ran("accumulate_gradients", {slot, gradient}, {slot});
    gradient.reset();
  } else {
    slot = add(slot, gradient);
  }
}

/// The gradient was made on another stream than it is used on (input_buffer.cpp, InputBuffer::add).
void hand_over(Runtime& runtime, const Tensor& gradient, std::uint8_t from, std::uint8_t to) {
  if (from == to || !gradient) return;
  const std::uint32_t made = runtime.make_event();
  runtime.record_event(made, from);
  runtime.wait_event(made, to);
  runtime.record_stream(gradient, to);
}

void validate(Node& node, Gradients& gradients) {
  for (std::size_t i = 0; i < gradients.size() && i < node.next.size(); ++i) {
    const Edge& edge = node.next[i];
    Tensor& gradient = gradients[i];
    if (!edge.node || !gradient) continue;
    const InputMetadata& want = edge.node->inputs[edge.input];
    if (!(gradient.shape() == want.shape)) gradient = sum_to(gradient, want.shape);
    if (gradient.dtype() != want.dtype) gradient = to(gradient, want.dtype);
  }
}

/// What a pass computes where not all gradients are wanted (engine.cpp, GraphTask::ExecInfo): nodes
/// that lead to a wanted leaf run, and a wanted leaf's gradient is kept in the place of being
/// added.
struct Wanted {
  const GradientsAsked& asked;
  std::unordered_map<const Node*, bool> leads;
  std::unordered_map<const Node*, Tensor*> leaves;

  void watch(const Node& node, const Gradients& arriving) const {
    if (!asked.arriving) return;
    const auto watched = asked.arriving->find(&node);
    if (watched == asked.arriving->end()) return;
    for (const Tensor& gradient : arriving) watched->second.push_back(gradient);
  }
  bool wants(const Node* node) const {
    const auto found = leads.find(node);
    return found != leads.end() && found->second;
  }
};

/// Edges that lead to nothing wanted are none while this lives: a node sees that and computes less.
class HiddenEdges {
 public:
  HiddenEdges(Node& node, const Wanted* wanted) : node_(node) {
    if (!wanted) return;
    for (std::size_t i = 0; i < node.next.size(); ++i) {
      NodeRef& next = node.next[static_cast<unsigned>(i)].node;
      if (next && !wanted->wants(next.get())) hidden_.emplace_back(i, std::exchange(next, {}));
    }
  }
  ~HiddenEdges() {
    for (auto& [i, next] : hidden_) node_.next[static_cast<unsigned>(i)].node = std::move(next);
  }
  HiddenEdges(const HiddenEdges&) = delete;
  HiddenEdges& operator=(const HiddenEdges&) = delete;

 private:
  Node& node_;
  std::vector<std::pair<std::size_t, NodeRef>> hidden_;
};

void evaluate(Node& node, Queue& queue, int depth, Wanted* wanted) {
  Runtime& runtime = *node.runtime;
  if (wanted) {
    if (const auto leaf = wanted->leaves.find(&node); leaf != wanted->leaves.end()) {
      *leaf->second = std::move(node.pending[0]);
      node.pending.clear();
      return;
    }
  }
  const HiddenEdges hidden(node, wanted);
  const Scoped<std::uint8_t> on(runtime.current_stream, node.stream);
  Gradients out(node.next.size());
  {
    Gradients in(node.inputs.size());
    for (std::size_t i = 0; i < node.pending.size(); ++i) in[i] = std::move(node.pending[i]);
    node.pending.clear();
    const Scoped<Label> label(runtime.label, {node.kind, node.module, true});
    for (const auto& hook : node.before) hook();
    if (runtime.recorder) runtime.recorder->node_runs(node);
    if (node.divided_output >= 0) {
      Tensor& divided = in[static_cast<unsigned>(node.divided_output)];
      if (divided) divided = div_scalar(divided);
    }
    if (wanted) wanted->watch(node, in);
    node.backward(node, in, out);
    validate(node, out);
    for (const auto& hook : node.after) hook();
  }
  if (!wanted || !wanted->asked.retain) node.release_saved();
  for (std::size_t i = 0; i < node.next.size(); ++i) {
    const Edge& edge = node.next[i];
    if (!edge.node) continue;
    Node& next = *edge.node.get();
    hand_over(runtime, out[i], node.stream, next.stream);
    add_pending(next, edge.input, std::move(out[i]));
    if (--next.dependencies == 0) queue.emplace(edge.node, depth);
  }
}

/// One pass; without `wanted` all leaves get their gradients.
void run_pass(const std::vector<Edge>& roots, const std::vector<Tensor>& gradients,
              Wanted* wanted) {
  Runtime& runtime = *roots.front().node.get()->runtime;
  const Scoped<bool> no_grad(runtime.grad_enabled, false);
  const Scoped<bool> thread(runtime.autograd_thread, true);
  const Scoped<int> depth(runtime.backward_depth, runtime.backward_depth + 1);
  const Scoped<Label> label(runtime.label, Label{"backward", 0, true});
  // Nodes run outside the caller's autocast and hooks: the pass has its own thread.
  const Scoped<bool> no_autocast(runtime.autocast.enabled, false);
  const Scoped<std::vector<std::function<void()>>> callbacks(runtime.final_callbacks, {});
  count_dependencies(roots, ++runtime.pass);
  NodeWatcher* const watcher = runtime.backward_depth == 1 ? runtime.watcher : nullptr;
  std::vector<Ready> room;
  room.reserve(16);
  Queue queue(Later(), std::move(room));
  std::unordered_set<const Node*> begun;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    Node& node = *roots[i].node.get();
    if (wanted && !wanted->wants(&node)) continue;
    add_pending(node, roots[i].input, Tensor(gradients[i]));
    if (node.dependencies == 0 && (roots.size() == 1 || begun.insert(&node).second)) {
      queue.emplace(roots[i].node, runtime.backward_depth);
    }
  }
  while (!queue.empty()) {
    NodeRef node = queue.top().node;
    queue.pop();
    if (watcher) watcher->node_begins(*node.get());
    evaluate(*node.get(), queue, runtime.backward_depth, wanted);
  }
  if (watcher) watcher->pass_ends();
  const auto last = std::exchange(runtime.final_callbacks, {});
  for (const auto& callback : last) callback();
}

}  // namespace

void run_backward(const Tensor& root, const Tensor& gradient) {
  if (!root->grad_fn) return;
  if (root.runtime().recorder) root.runtime().recorder->backward_begins(root);
  run_pass({{root->grad_fn, root->output}}, {gradient}, nullptr);
}

std::unordered_map<const Node*, bool> leading_to(const std::vector<Node*>& roots,
                                                 const std::vector<Node*>& leaves) {
  std::unordered_map<const Node*, bool> leads;
  for (const Node* leaf : leaves) leads[leaf] = true;
  std::unordered_set<const Node*> seen;
  std::vector<std::pair<Node*, std::size_t>> path;
  const auto see = [&](Node* node) {
    if (!seen.insert(node).second) return;
    leads.emplace(node, false);
    path.emplace_back(node, 0);
  };
  for (Node* root : roots) {
    see(root);
    while (!path.empty()) {
      Node* node = path.back().first;
      const std::size_t next = path.back().second++;
      if (next == node->next.size()) {
        path.pop_back();
        if (leads.at(node) && !path.empty()) leads.at(path.back().first) = true;
        continue;
      }
      Node* behind = node->next[static_cast<unsigned>(next)].node.get();
      if (!behind) continue;
      see(behind);
      if (leads.at(behind)) leads.at(node) = true;
    }
  }
  return leads;
}

std::vector<Tensor> gradients_of(const GradientsAsked& asked) {
  std::vector<Tensor> gradients(asked.wanted.size());
  std::vector<Node*> roots;
  for (const Edge& root : asked.roots) roots.push_back(root.node.get());
  std::vector<Node*> leaves;
  Wanted wanted{asked, {}, {}};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!asked.wanted[i]) continue;
    leaves.push_back(asked.wanted[i]);
    wanted.leaves.emplace(asked.wanted[i], &gradients[i]);
  }
  wanted.leads = leading_to(roots, leaves);
  const bool reached =
      std::any_of(roots.begin(), roots.end(), [&](const Node* root) { return wanted.wants(root); });
  if (reached) run_pass(asked.roots, asked.gradients, &wanted);
  return gradients;
}

Tensor sum_to(const Tensor& tensor, const Shape& shape) {
  if (tensor.shape() == shape) return tensor;
  Shape sizes = tensor.shape();
  std::uint32_t dims = 0;
  const int lead = sizes.rank - shape.rank;
  for (int i = 0; i < sizes.rank; ++i) {
    if (i < lead || (shape[i - lead] == 1 && sizes[i] != 1)) dims |= 1U << i;
  }
  Tensor sum = sum_dims(tensor, dims, true);
  return lead > 0 ? view(sum, shape) : sum;
}

}  // namespace shardfit::tensor
