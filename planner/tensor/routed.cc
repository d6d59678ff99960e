#include "tensor/routed.h"

#include "tensor/cub.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

void index_add_backward(Node& node, Gradients& in, Gradients& out) {
  if (node.wants(0)) out[0] = in[0];
  if (!node.wants(1)) return;
  const Tensor index = node.load(0);
  const Tensor source = node.load(1);
  out[1] = node.runtime->empty(source.shape(), in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("index", {index}, {out[1]});
}

}  // namespace

void index_add_in_place(const Tensor& x, const Tensor& index, const Tensor& source) {
  if (x.rank() == 0 || index.rank() != 1 || source.rank() != x.rank() ||
      source.size(0) != index.size(0)) {
    throw ShapeError("index_add: " + shape_text(index.shape()) + " rows of " +
                     shape_text(source.shape()) + " to " + shape_text(x.shape()));
  }
  Runtime& runtime = x.runtime();
  if (runtime.watched()) runtime.ran("index_add", {source, index}, {x});
  if (!runtime.grad_on() || !(x.requires_grad() || source.requires_grad())) return;
  const NodeRef node = runtime.make_node("index_add", index_add_backward, 2);
  runtime.connect(*node.get(), 0, x);
  runtime.connect(*node.get(), 1, source);
  node->save(index);
  node->save(source);
  runtime.attach(node, x);
}

namespace {

/// Where `mask` is true, (count, dimensions) of int64: counted, then written dimension by dimension
/// (cuda/Nonzero.cu, nonzero_cuda_out_impl).
Tensor places_of(const Tensor& mask, std::int64_t count) {
  Runtime& runtime = mask.runtime();
  const Tensor counted = runtime.empty(Shape{1}, DType::i32);
  runtime.scratch(reduce_sum_scratch(runtime.device, mask.count(), 4));
  Tensor places = runtime.empty(Shape{mask.rank(), count}, DType::i64);
  runtime.scratch(select_flagged_scratch(mask.count()));
  return places;
}

/// Zeros of x's shape, into which the gradient is written one by one behind a running sum of the
/// mask (FunctionsManual.cpp, masked_select_backward; cuda/IndexKernel.cu, masked_scatter).
void masked_select_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor x = node.load(0);
  const Tensor mask = node.load(1);
  Runtime& runtime = *node.runtime;
  out[0] = runtime.empty(x.shape(), in[0].dtype());
  const Tensor sums = runtime.empty(mask.shape(), DType::i64);
  runtime.scratch(scan_scratch(mask.count(), 8));
  if (runtime.watched()) runtime.ran("masked_scatter", {in[0], mask, sums}, {out[0]});
}

void index_select_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor rows = node.load(0);
  out[0] = node.runtime->empty(node.shape, in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("index_add", {in[0], rows}, {out[0]});
}

void scatter_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor indices = node.load(0);
  out[1] = node.runtime->empty(indices.shape(), in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("gather", {indices}, {out[1]});
}

void scatter_add_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor rows = node.load(0);
  if (node.wants(0)) out[0] = in[0];
  if (!node.wants(1)) return;
  out[1] = node.runtime->empty(node.shape, in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("gather", {rows}, {out[1]});
}

}  // namespace

Tensor masked_select(const Tensor& x, const Tensor& mask, std::int64_t count) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "masked_select");
  const Shape shape = broadcast("masked_select", x.shape(), mask.shape());
  if (count < 0 || count > shape.count() || mask.dtype() != DType::boolean) {
    throw ShapeError("masked_select: " + std::to_string(count) + " of " + shape_text(shape));
  }
  NodeRef node;
  if (runtime.grad_on() && x.requires_grad()) {
    node = runtime.make_node("masked_select", masked_select_backward, 1);
    runtime.connect(*node.get(), 0, x);
    node->save(x);
    node->save(mask);
  }
  Tensor out;
  {
    const Tensor places = places_of(mask, count);
    out = runtime.empty(Shape{count}, x.dtype());
    if (runtime.watched()) runtime.ran("masked_select", {mask, places}, {out});
  }
  if (node) runtime.attach(node, out);
  return out;
}

Tensor index_select(const Tensor& x, const Tensor& rows) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "index_select");
  if (x.rank() < 1 || rows.rank() != 1) {
    throw ShapeError("index_select: " + shape_text(rows.shape()) + " of " + shape_text(x.shape()));
  }
  NodeRef node;
  if (runtime.grad_on() && x.requires_grad()) {
    node = runtime.make_node("index_select", index_select_backward, 1);
    runtime.connect(*node.get(), 0, x);
    node->save(rows);
    node->shape = x.shape();
  }
  Shape shape = x.shape();
  shape[0] = rows.count();
  Tensor out = runtime.empty(shape, x.dtype());
  if (runtime.watched()) runtime.ran("index_select", {rows, out}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

Tensor scatter(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "scatter");
  if (x.rank() != indices.rank() || dim < -x.rank() || dim >= x.rank()) {
    throw ShapeError("scatter: " + shape_text(indices.shape()) + " to " + shape_text(x.shape()));
  }
  NodeRef node;
  if (source && runtime.grad_on() && source.requires_grad()) {
    node = runtime.make_node("scatter", scatter_backward, 2);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, source);
    node->save(indices);
  }
  Tensor out = runtime.empty(x.shape(), x.dtype());
  if (runtime.watched()) runtime.ran("scatter", {x, indices}, {out});
  if (node) runtime.attach(node, out);
  return out;
}

void scatter_add_rows(const Tensor& x, const Tensor& rows, const Tensor& source) {
  if (x.rank() != 2 || rows.rank() != 1 || source.rank() != 2 || source.size(0) != rows.size(0) ||
      source.size(1) != x.size(1)) {
    throw ShapeError("scatter_add: " + shape_text(rows.shape()) + " rows of " +
                     shape_text(source.shape()) + " to " + shape_text(x.shape()));
  }
  Runtime& runtime = x.runtime();
  if (runtime.watched()) runtime.ran("scatter_add", {source, rows}, {x});
  if (!runtime.grad_on() || !(x.requires_grad() || source.requires_grad())) return;
  const NodeRef node = runtime.make_node("scatter_add", scatter_add_backward, 2);
  runtime.connect(*node.get(), 0, x);
  runtime.connect(*node.get(), 1, source);
  node->save(rows);
  node->shape = source.shape();
  runtime.attach(node, x);
}

}  // namespace shardfit::tensor
