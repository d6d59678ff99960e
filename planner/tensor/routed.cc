#include "tensor/routed.h"

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

}  // namespace shardfit::tensor
