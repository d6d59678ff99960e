#include "tensor/engine.h"

#include <queue>

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

void count_dependencies(Node* root, std::uint64_t pass) {
  std::vector<Node*> todo{root};
  root->pass = pass;
  root->dependencies = 0;
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    for (const Edge& edge : node->next) {
      Node* next = edge.node.get();
      if (!next) continue;
      if (next->pass != pass) {
        next->pass = pass;
        next->dependencies = 0;
        todo.push_back(next);
      }
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

void evaluate(Node& node, Queue& queue, int depth) {
  Runtime& runtime = *node.runtime;
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
    node.backward(node, in, out);
    validate(node, out);
    for (const auto& hook : node.after) hook();
  }
  node.release_saved();
  for (std::size_t i = 0; i < node.next.size(); ++i) {
    const Edge& edge = node.next[i];
    if (!edge.node) continue;
    Node& next = *edge.node.get();
    hand_over(runtime, out[i], node.stream, next.stream);
    add_pending(next, edge.input, std::move(out[i]));
    if (--next.dependencies == 0) queue.emplace(edge.node, depth);
  }
}

}  // namespace

void run_backward(const Tensor& root, const Tensor& gradient) {
  if (!root->grad_fn) return;
  Runtime& runtime = root.runtime();
  const Scoped<bool> no_grad(runtime.grad_enabled, false);
  const Scoped<bool> thread(runtime.autograd_thread, true);
  const Scoped<int> depth(runtime.backward_depth, runtime.backward_depth + 1);
  const Scoped<Label> label(runtime.label, Label{"backward", 0, true});
  // Nodes run outside the caller's autocast and hooks: the pass has its own thread.
  const Scoped<bool> no_autocast(runtime.autocast.enabled, false);
  if (runtime.recorder) runtime.recorder->backward_begins(root);
  const Scoped<std::vector<std::function<void()>>> callbacks(runtime.final_callbacks, {});
  count_dependencies(root->grad_fn.get(), ++runtime.pass);
  add_pending(*root->grad_fn.get(), root->output, Tensor(gradient));
  Queue queue;
  queue.emplace(root->grad_fn, runtime.backward_depth);
  while (!queue.empty()) {
    NodeRef node = queue.top().node;
    queue.pop();
    evaluate(*node.get(), queue, runtime.backward_depth);
  }
  const auto last = std::exchange(runtime.final_callbacks, {});
  for (const auto& callback : last) callback();
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
