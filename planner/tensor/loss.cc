#include "tensor/autocast.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

void nll_backward(Node& node, Gradients&, Gradients& out) {
  const Tensor input = node.load(0);
  const Tensor target = node.load(1);
  const Tensor total_weight = node.load(2);
  out[0] = node.runtime->empty(input.shape(), input.dtype());
  if (node.runtime->watched()) node.runtime->ran("nll_loss", {target}, {out[0]});
}

Tensor nll_loss(const Tensor& input_in, const Tensor& target) {
  const Tensor input = cast_full(input_in);
  Runtime& runtime = input.runtime();
  const Scoped<const char*> label(runtime.label.kind, "nll_loss");
  NodeRef node;
  if (runtime.grad_enabled && input.requires_grad()) {
    node = runtime.make_node("nll_loss", nll_backward, 1);
    runtime.connect(*node.get(), 0, input);
    node->save(input);
    node->save(target);
  }
  Tensor out = runtime.empty(Shape{}, input.dtype());
  const Tensor total_weight = runtime.empty(Shape{}, input.dtype());
  if (runtime.watched()) {  // one number a row is read of the input
    Compute cost;
    cost.bytes = static_cast<double>(target.count()) *
                 static_cast<double>(element_size(input.dtype()) + element_size(target.dtype()));
    runtime.ran("nll_loss", {input, target}, {out}, cost);
  }
  if (node) {
    runtime.attach(node, out);
    node->save(total_weight);
  }
  return out;
}

void mse_backward(Node& node, Gradients&, Gradients& out) {
  const Tensor self = node.load(0);
  const Tensor target = node.load(1);
  if (node.wants(0)) out[0] = elementwise_output("mse_loss", {self, target}, self.dtype());
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target) {
  if (logits.rank() != 2 || target.rank() != 1 || logits.size(0) != target.size(0)) {
    throw ShapeError("cross_entropy: logits " + shape_text(logits.shape()) + ", target " +
                     shape_text(target.shape()));
  }
  // The dtype is given, so that autocast leaves the logarithm in it and casts what comes of it.
  return nll_loss(log_softmax(logits, -1, logits.dtype()), target);
}

namespace {

/// sigmoid(logits) with the target and the gradient taken in, in place (Loss.cpp,
/// binary_cross_entropy_with_logits; derivatives FunctionsManual.cpp).
void bce_backward(Node& node, Gradients&, Gradients& out) {
  const Tensor logits = node.load(0);
  const Tensor target = node.load(1);
  out[0] = elementwise_output("bce_with_logits", {logits}, logits.dtype());
}

}  // namespace

Tensor bce_with_logits(const Tensor& logits_in, const Tensor& target_in) {
  const Tensor logits = cast_full(logits_in);
  const Tensor target = cast_full(target_in);
  Runtime& runtime = logits.runtime();
  const Scoped<const char*> label(runtime.label.kind, "bce_with_logits");
  if (!(logits.shape() == target.shape())) {
    throw ShapeError("bce_with_logits: logits " + shape_text(logits.shape()) + ", target " +
                     shape_text(target.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled && logits.requires_grad()) {
    node = runtime.make_node("bce_with_logits", bce_backward, 1);
    runtime.connect(*node.get(), 0, logits);
    node->save(logits);
    node->save(target);
  }
  const Scoped<bool> no_grad(runtime.grad_enabled, false);
  const Tensor log_sigmoid = elementwise_output("bce_with_logits", {logits}, logits.dtype());
  const Tensor each = elementwise_output("bce_with_logits", {logits, target}, logits.dtype());
  Tensor out = mean_all(each);
  if (node) runtime.attach(node, out);
  return out;
}

Tensor mse_loss(const Tensor& a_in, const Tensor& target_in) {
  const Tensor a = cast_full(a_in);
  const Tensor target = cast_full(target_in);
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, "mse_loss");
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("mse_loss", mse_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->save(a);
    node->save(target);
  }
  // The result has the memory of all squares; the mean goes into its front (Loss.cpp,
  // mse_loss_out).
  const Tensor room = elementwise_empty("mse_loss", {a, target}, a.dtype());
  Tensor out = runtime.alias_of(room, Shape{}, Shape{});
  const Tensor squared = elementwise_output("mse_loss", {a, target}, a.dtype());
  const auto [buffer, semaphores] = reduce_scratch(squared, (1U << squared.rank()) - 1, a.dtype());
  if (buffer > 0) {
    const Tensor first = runtime.scratch(buffer);
    const Tensor second = runtime.scratch(semaphores);
  }
  if (runtime.watched()) runtime.ran("mean", {squared}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
