#include "program/strategies/expert_parallel.h"

#include <algorithm>

#include "tensor/node.h"
#include "tensor/ops.h"

namespace shardfit::program {

using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

struct ExchangeExtra : tensor::NodeExtra {
  ExpertParallel* parallel = nullptr;
  std::int64_t sent = 0, busiest = 0;  // rows
};

Tensor rows_of(const Tensor& x) {
  return tensor::view(x, Shape{x.count() / x.size(-1), x.size(-1)});
}

void router_backward(Node& node, Gradients& in, Gradients& out) {
  {
    const Tensor x = node.load(0);
    const Tensor weight = node.load(1);
    const Tensor gradient = rows_of(in[0]);
    out[0] = tensor::view(tensor::mm(gradient, weight), x.shape());
    out[1] = tensor::mm(tensor::transpose(gradient, 0, 1), rows_of(x));
  }
  in[0].reset();
}

}  // namespace

struct ExpertParallelBackward {
  static void exchange(Node& node, Gradients& in, Gradients& out) {
    const auto& extra = static_cast<const ExchangeExtra&>(*node.extra);
    {
      const Scoped<bool> no_grad(node.runtime->grad_enabled, false);
      out[0] = extra.parallel->exchange_rows(in[0], extra.sent, extra.busiest);
    }
    in[0].reset();
  }
};

ExpertParallel::ExpertParallel(Runtime& runtime, std::vector<std::int32_t> ranks)
    : runtime_(runtime), ranks_(std::move(ranks)) {
  if (ranks_.size() < 2) return;
  group_ = runtime_.group(ranks_);
  stream_ = runtime_.stream("expert");
}

void ExpertParallel::exchange(CollectiveKind kind, DType dtype, std::int64_t bytes) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = dtype;
  collective.bytes = bytes;
  collective.group = group_;
  runtime_.wait_event(runtime_.exchange(collective, stream_), runtime_.current_stream);
}

Tensor ExpertParallel::router(const Tensor& x, const Tensor& weight) {
  const Scoped<const char*> label(runtime_.label.kind, "router");
  const NodeRef node = tensor::function_node("router", router_backward, {x, weight});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const Tensor flat = tensor::mm(rows_of(x), tensor::transpose(weight, 0, 1));
    Shape shape = x.shape();
    shape[-1] = weight.size(0);
    out = runtime_.alias_of(flat, shape, tensor::contiguous_strides(shape));
  }
  if (node) {
    runtime_.attach(node, out);
    node->save(x);
    node->save(weight);
  }
  return out;
}

Tensor ExpertParallel::exchange_rows(const Tensor& x, std::int64_t received, std::int64_t busiest) {
  const Scoped<const char*> label(runtime_.label.kind, "exchange_rows");
  const NodeRef node =
      tensor::function_node("exchange_rows", ExpertParallelBackward::exchange, {x});
  Tensor out;
  if (ranks_.size() < 2) {
    out = runtime_.view_of(x, x.shape(), x->stride);
  } else {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const Tensor dense = tensor::contiguous(x);
    Shape shape = x.shape();
    shape[0] = received;
    out = runtime_.empty(shape, x.dtype());
    const std::int64_t row = x.size(0) > 0 ? x.count() / x.size(0) : 0;
    const std::int64_t most = std::max({busiest, received, x.size(0)});
    exchange(CollectiveKind::all_to_all, x.dtype(), most * row * element_size(x.dtype()));
  }
  if (node) {
    auto extra = std::make_unique<ExchangeExtra>();
    extra->parallel = this;
    extra->sent = x.size(0);
    extra->busiest = busiest;
    node->extra = std::move(extra);
    runtime_.attach(node, out);
  }
  return out;
}

Tensor ExpertParallel::gather_counts(const Tensor& counts) {
  const Scoped<const char*> label(runtime_.label.kind, "gather_counts");
  const auto ranks = static_cast<std::int64_t>(ranks_.size());
  Tensor out = runtime_.empty(Shape{ranks * counts.count()}, counts.dtype());
  if (ranks > 1) {
    exchange(CollectiveKind::all_gather, counts.dtype(),
             out.count() * element_size(counts.dtype()));
  }
  return out;
}

void ExpertParallel::send_to_host(const Tensor& x) {
  runtime_.record_stream(x, runtime_.stream("counts"));
}

void ExpertParallel::keep(const std::string& name, const Tensor& x, bool once) {
  Tensor& kept = kept_[{once ? 0 : runtime_.label.module, name}];
  if (!once || !kept) kept = x;
}

}  // namespace shardfit::program
