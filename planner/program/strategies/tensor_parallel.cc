// Regions and linear layers of tensor parallelism (megatron/core/tensor_parallel/mappings.py and
// layers.py).

#include "program/strategies/tensor_parallel.h"

#include <limits>

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

constexpr std::uint32_t no_event = std::numeric_limits<std::uint32_t>::max();

struct ParallelExtra : tensor::NodeExtra {
  TensorParallel* parallel = nullptr;
  bool column = false;
  bool bias = false;
};

TensorParallel& parallel_of(Node& node) {
  return *static_cast<ParallelExtra&>(*node.extra).parallel;
}

NodeRef region_node(const char* kind, tensor::Backward backward, TensorParallel& parallel,
                    std::initializer_list<Tensor> inputs) {
  NodeRef node = tensor::function_node(kind, backward, inputs);
  if (!node) return node;
  auto extra = std::make_unique<ParallelExtra>();
  extra->parallel = &parallel;
  node->extra = std::move(extra);
  return node;
}

/// A function of Python that gives back its input: a view of it.
Tensor handed_back(const Tensor& x, const NodeRef& node) {
  Tensor out = x.runtime().view_of(x, x.shape(), x->stride);
  if (node) x.runtime().attach(node, out);
  return out;
}

Shape first_times(Shape shape, std::int64_t factor) {
  shape[0] *= factor;
  return shape;
}

void pass_on(Node&, Gradients& in, Gradients& out) { out[0] = std::move(in[0]); }

void sum_gradient(Node& node, Gradients& in, Gradients& out) {
  TensorParallel& parallel = parallel_of(node);
  if (parallel.degree() > 1) {
    const Tensor dense = tensor::contiguous(in[0]);
    parallel.wait(parallel.exchange(CollectiveKind::all_reduce, dense));
  }
  out[0] = std::move(in[0]);
}

void gather_gradient(Node& node, Gradients& in, Gradients& out) {
  TensorParallel& parallel = parallel_of(node);
  {
    out[0] = node.runtime->empty(first_times(in[0].shape(), parallel.degree()), in[0].dtype());
    const Tensor dense = tensor::contiguous(in[0]);
    parallel.wait(parallel.exchange(CollectiveKind::all_gather, out[0]));
  }
  in[0].reset();
}

Tensor flat(const Tensor& x) {
  const Tensor dense = tensor::contiguous(x);
  if (dense.rank() != 3) return dense;
  return tensor::view(dense, Shape{dense.size(0) * dense.size(1), dense.size(2)});
}

}  // namespace

struct TensorParallelBackward {
  static void linear(Node& node, Gradients& in, Gradients& out) {
    const auto& extra = static_cast<const ParallelExtra&>(*node.extra);
    TensorParallel& parallel = *extra.parallel;
    const bool sequence = extra.column && parallel.sequence();
    const bool reduce = extra.column && !sequence && parallel.degree() > 1;
    {
      const Tensor input = node.load(0);
      const Tensor weight = node.load(1);
      std::uint32_t event = no_event;
      Tensor total = sequence ? parallel.gathered(input, event) : input;
      Tensor own = tensor::matmul(in[0], weight);
      if (sequence) parallel.wait(event);
      const Tensor gradient = flat(in[0]);
      total = flat(total);
      Tensor part;
      if (reduce) event = parallel.exchange(CollectiveKind::all_reduce, own);
      if (sequence) {
        part = node.runtime->empty(input.shape(), input.dtype());
        event = parallel.exchange(CollectiveKind::reduce_scatter, own);
      }
      out[1] = tensor::mm(tensor::transpose(gradient, 0, 1), total);
      if (extra.bias) out[2] = tensor::sum_dims(gradient, 1, false);
      if (reduce || sequence) parallel.wait(event);
      out[0] = sequence ? part : own;
    }
    in[0].reset();
  }
};

TensorParallel::TensorParallel(Runtime& runtime, std::vector<std::int32_t> ranks,
                               std::int64_t place, bool sequence)
    : runtime_(runtime),
      ranks_(std::move(ranks)),
      place_(place),
      sequence_(sequence && ranks_.size() > 1) {
  if (ranks_.size() < 2) return;
  group_ = runtime_.group(ranks_);
  stream_ = runtime_.stream("tensor");
}

std::uint32_t TensorParallel::exchange(CollectiveKind kind, const Tensor& whole) {
  if (degree() < 2) return no_event;
  Collective collective;
  collective.kind = kind;
  collective.dtype = whole.dtype();
  collective.bytes = whole.count() * element_size(whole.dtype());
  collective.group = group_;
  return runtime_.exchange(collective, stream_);
}

void TensorParallel::wait(std::uint32_t event) {
  if (event != no_event) runtime_.wait_event(event, runtime_.current_stream);
}

Tensor TensorParallel::copy_in(const Tensor& x) {
  return handed_back(x, region_node("copy_in", sum_gradient, *this, {x}));
}

Tensor TensorParallel::reduce_out(const Tensor& x) {
  const Scoped<const char*> label(runtime_.label.kind, "reduce_out");
  const NodeRef node = region_node("reduce_out", pass_on, *this, {x});
  if (degree() > 1) {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const Tensor dense = tensor::contiguous(x);
    wait(exchange(CollectiveKind::all_reduce, dense));
  }
  return handed_back(x, node);
}

Tensor TensorParallel::scatter_sum(const Tensor& x) {
  if (x.size(0) % degree() != 0) {
    throw tensor::ShapeError("sequence parallelism: " + std::to_string(x.size(0)) + " rows over " +
                             std::to_string(degree()) + " ranks");
  }
  const Scoped<const char*> label(runtime_.label.kind, "scatter_sum");
  const NodeRef node = region_node("scatter_sum", gather_gradient, *this, {x});
  Shape shape = x.shape();
  shape[0] /= degree();
  Tensor out = runtime_.empty(shape, x.dtype());
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const Tensor dense = tensor::contiguous(x);
    wait(exchange(CollectiveKind::reduce_scatter, dense));
  }
  if (node) runtime_.attach(node, out);
  return out;
}

Tensor TensorParallel::own_rows(const Tensor& x) {
  if (x.size(0) % degree() != 0) {
    throw tensor::ShapeError("sequence parallelism: " + std::to_string(x.size(0)) + " rows over " +
                             std::to_string(degree()) + " ranks");
  }
  const NodeRef node = region_node("own_rows", gather_gradient, *this, {x});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const std::int64_t rows = x.size(0) / degree();
    out = tensor::contiguous(tensor::slice(x, 0, place_ * rows, (place_ + 1) * rows));
  }
  if (node) runtime_.attach(node, out);
  return out;
}

Tensor TensorParallel::buffer(const Shape& shape, DType dtype) {
  Tensor& kept = buffers_[dtype];
  if (!kept || kept.count() < shape.count()) {
    const Scoped<const char*> label(runtime_.label.kind, "shared_buffer");
    kept = runtime_.empty(Shape{shape.count()}, dtype);
    runtime_.set_category(kept, Category::workspace);
  }
  return runtime_.alias_of(kept, shape, tensor::contiguous_strides(shape));
}

Tensor TensorParallel::gathered(const Tensor& x, std::uint32_t& event) {
  Tensor whole = buffer(first_times(x.shape(), degree()), x.dtype());
  event = exchange(CollectiveKind::all_gather, whole);
  return whole;
}

Tensor TensorParallel::linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              bool column) {
  const NodeRef node =
      region_node("linear", TensorParallelBackward::linear, *this, {x, weight, bias});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    Tensor total = x;
    if (column && sequence_) {
      std::uint32_t event = no_event;
      total = gathered(x, event);
      wait(event);
    }
    out = tensor::matmul(total, tensor::transpose(weight, 0, 1));
    if (bias) out = tensor::add(out, bias);
  }
  if (node) {
    auto& extra = static_cast<ParallelExtra&>(*node->extra);
    extra.column = column;
    extra.bias = static_cast<bool>(bias);
    runtime_.attach(node, out);
    node->save(x);
    node->save(weight);
  }
  return out;
}

namespace {

/// weight[mask, :] = 0 behind a lookup: the gradient is copied, then zeroed where the mask says
/// (FunctionsManual.cpp, index_put).
void zero_rows_backward(Node&, Gradients& in, Gradients& out) {
  out[0] = tensor::clone(in[0], true);
}

}  // namespace

Tensor TensorParallel::embedding(const Tensor& weight, const Tensor& ids) {
  Tensor mask;
  Tensor places = ids;
  if (degree() > 1) {
    {
      const Tensor below = tensor::compare_scalar("lt", ids);
      const Tensor above = tensor::compare_scalar("ge", ids);
      mask = tensor::compare("or", below, above);
    }
    const Tensor copy = tensor::clone(ids, true);
    places = tensor::add_scalar(copy);
  }
  Tensor out = tensor::embedding(weight, places);
  if (degree() == 1) return out;
  if (const NodeRef node = tensor::function_node("zero_rows", zero_rows_backward, {out})) {
    node->save(mask);
    runtime_.attach(node, out);
  }
  return out;
}

}  // namespace shardfit::program
