// The loss over a vocabulary that is split (megatron/core/tensor_parallel/cross_entropy.py,
// megatron/core/fusions/fused_cross_entropy.py run as it is written).

#include <limits>

#include "program/strategies/tensor_parallel.h"
#include "tensor/node.h"
#include "tensor/ops.h"

namespace shardfit::program {

using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

Tensor one_row(const Tensor& x) { return tensor::view(x, Shape{-1}); }
Tensor matrix(const Tensor& x) { return tensor::view(x, Shape{-1, x.size(-1)}); }

/// The probabilities become the gradient in place; a number for each token is read and written.
void vocabulary_loss_backward(Node& node, Gradients& in, Gradients& out) {
  {
    tensor::Runtime& runtime = *node.runtime;
    Tensor probabilities = node.load(0);
    const Tensor mask = node.load(1);
    const Tensor places = node.load(2);
    const Tensor rows = runtime.empty(Shape{places.count()}, DType::i64);
    Tensor wide = tensor::to(one_row(mask), DType::f32);
    const Tensor update = tensor::add_scalar(wide);
    wide.reset();
    tensor::index(matrix(probabilities), {rows, places});
    if (runtime.watched()) runtime.ran("mul", {probabilities}, {probabilities});
    const bool fused = node.number[0] != 0;
    out[0] = fused ? tensor::to(probabilities, DType::bf16) : probabilities;
  }
  in[0].reset();
}

}  // namespace

Tensor TensorParallel::cross_entropy(const Tensor& logits, const Tensor& target, bool fused) {
  const Scoped<const char*> label(runtime_.label.kind, "vocabulary_loss");
  const NodeRef node = tensor::function_node("vocabulary_loss", vocabulary_loss_backward, {logits});
  Tensor loss, values, mask, places;
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    values = tensor::to(logits, DType::f32);
    Shape tokens = values.shape();
    tokens.erase(tokens.rank - 1);
    Tensor most = runtime_.empty(tokens, DType::f32);
    {
      const Tensor where = runtime_.empty(tokens, DType::i64);
      // Past 2^31 bytes the kernel runs in parts, which meet in pairs of value and place
      // (Reduce.cuh, AccumulationBuffer).
      constexpr std::int64_t in_one_run = std::numeric_limits<std::int32_t>::max();
      if (values.count() * element_size(DType::f32) > in_one_run) {
        runtime_.scratch(16 * tokens.count());
      }
    }
    if (runtime_.watched()) runtime_.ran("max", {values}, {most});
    wait(exchange(CollectiveKind::all_reduce, most));
    if (runtime_.watched()) runtime_.ran("sub", {values, most}, {values});
    {
      const Tensor below = tensor::compare_scalar("lt", target);
      const Tensor above = tensor::compare_scalar("ge", target);
      mask = tensor::compare("or", below, above);
    }
    {
      const Tensor copy = tensor::clone(target, true);
      places = one_row(tensor::add_scalar(copy));
    }
    Tensor predicted, total;
    {
      const Tensor rows = runtime_.empty(Shape{places.count()}, DType::i64);
      {
        const Tensor found = tensor::index(matrix(values), {rows, places});
        predicted = tensor::view(tensor::clone(found, true), tokens);
      }
      if (runtime_.watched()) runtime_.ran("exp", {values}, {values});
      total = tensor::sum_dims(values, 1U << (values.rank() - 1), false);
    }
    if (fused) {
      const Tensor both = tensor::cat({predicted, total}, 0);
      predicted.reset();
      total.reset();
      wait(exchange(CollectiveKind::all_reduce, both));
      const std::vector<Tensor> parts = tensor::split(both, {tokens[0], tokens[0]}, 0);
      const Tensor logarithm = tensor::log(parts[1]);
      loss = tensor::sub(logarithm, parts[0]);
    } else {
      wait(exchange(CollectiveKind::all_reduce, predicted));
      wait(exchange(CollectiveKind::all_reduce, total));
      const Tensor logarithm = tensor::log(total);
      loss = tensor::sub(logarithm, predicted);
    }
    if (runtime_.watched()) runtime_.ran("div", {values}, {values});
  }
  if (node) {
    runtime_.attach(node, loss);
    node->save(values);
    node->save(mask);
    node->save(places);
    node->number[0] = fused;
  }
  return loss;
}

}  // namespace shardfit::program
