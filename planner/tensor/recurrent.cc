#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

/// Gradients of the four gates, of the old cell and, where there are biases, their sum over the
/// batch, which both biases get (native/cuda/RNN.cu, _thnn_fused_lstm_cell_backward).
void lstm_cell_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor cell = node.load(2);
  const Tensor workspace = node.load(4);
  const Tensor gates = runtime.empty(workspace.shape(), workspace.dtype());
  out[2] = runtime.empty(cell.shape(), cell.dtype());
  if (runtime.watched()) {
    std::vector<Tensor> read{workspace};
    for (const Tensor& gradient : in) {
      if (gradient) read.push_back(gradient);
    }
    runtime.ran("lstm_cell", read, {gates, out[2]});
  }
  if (node.wants(3) || node.wants(4)) {
    const Tensor bias = sum_dims(gates, 1, false);
    out[3] = bias;
    out[4] = bias;
  }
  out[0] = gates;
  out[1] = gates;
}

void unbind_backward(Node& node, Gradients& in, Gradients& out) {
  std::vector<Tensor> parts;
  DType dtype = DType::f32;
  for (const Tensor& gradient : in) {
    if (gradient) dtype = gradient.dtype();
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    parts.push_back(in[i] ? in[i] : node.runtime->empty(node.inputs[i].shape, dtype));
  }
  out[0] = stack(parts, static_cast<int>(node.number[0]));
}

void stack_backward(Node& node, Gradients& in, Gradients& out) {
  const int dim = static_cast<int>(node.number[0]);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (node.wants(static_cast<int>(i))) {
      out[i] = select(in[0], dim, static_cast<std::int64_t>(i));
    }
  }
}

int wrapped(int dim, int rank) {
  const int i = dim < 0 ? dim + rank : dim;
  if (i < 0 || i >= rank) throw ShapeError("no dimension " + std::to_string(dim));
  return i;
}

}  // namespace

std::pair<Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& cell, const Tensor& input_bias,
                                    const Tensor& hidden_bias) {
  Runtime& runtime = input_gates.runtime();
  const Scoped<const char*> label(runtime.label.kind, "lstm_cell");
  if (input_gates.rank() != 2 || !(input_gates.shape() == hidden_gates.shape()) ||
      cell.rank() != 2 || cell.size(0) != input_gates.size(0) ||
      cell.size(1) * 4 != input_gates.size(1)) {
    throw ShapeError("lstm_cell: gates " + shape_text(input_gates.shape()) + " and " +
                     shape_text(hidden_gates.shape()) + ", cell " + shape_text(cell.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled && (input_gates.requires_grad() || hidden_gates.requires_grad())) {
    node = runtime.make_node("lstm_cell", lstm_cell_backward, 5);
    runtime.connect(*node.get(), 0, input_gates);
    runtime.connect(*node.get(), 1, hidden_gates);
    runtime.connect(*node.get(), 2, cell);
    runtime.connect(*node.get(), 3, input_bias);
    runtime.connect(*node.get(), 4, hidden_bias);
    node->save(input_gates);
    node->save(hidden_gates);
    node->save(cell);
  }
  const Tensor workspace = runtime.empty(input_gates.shape(), input_gates.dtype());
  Tensor hidden = runtime.empty(cell.shape(), cell.dtype());
  Tensor fresh = runtime.empty(cell.shape(), cell.dtype());
  if (runtime.watched()) {
    runtime.ran("lstm_cell", {input_gates, hidden_gates, cell}, {hidden, fresh, workspace});
  }
  if (node) {
    runtime.attach(node, hidden);
    runtime.attach(node, fresh);
    node->save(fresh);
    node->save(workspace);
  }
  return {std::move(hidden), std::move(fresh)};
}

std::vector<Tensor> unbind(const Tensor& a, int dim) {
  Runtime& runtime = a.runtime();
  const int i = wrapped(dim, a.rank());
  NodeRef node;
  if (runtime.grad_enabled && a.requires_grad()) {
    node = runtime.make_node("unbind", unbind_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->number[0] = i;
  }
  Shape shape = a.shape();
  Shape stride = a->stride;
  shape.erase(i);
  stride.erase(i);
  std::vector<Tensor> parts;
  for (std::int64_t k = 0; k < a.size(i); ++k) {
    parts.push_back(runtime.view_of(a, shape, stride));
    runtime.viewed("unbind", a, parts.back());
    if (node) runtime.attach(node, parts.back());
  }
  return parts;
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty()) throw ShapeError("stack: no tensors");
  Runtime& runtime = tensors.front().runtime();
  const Scoped<const char*> label(runtime.label.kind, "stack");
  Shape shape = tensors.front().shape();
  const int i = wrapped(dim, shape.rank + 1);
  bool wanted = false;
  DType dtype = tensors.front().dtype();
  for (const Tensor& one : tensors) {
    if (!(one.shape() == shape)) {
      throw ShapeError("stack: " + shape_text(shape) + " and " + shape_text(one.shape()));
    }
    wanted = wanted || one.requires_grad();
    dtype = promote(dtype, one.dtype());
  }
  NodeRef node;
  if (runtime.grad_enabled && wanted) {
    node = runtime.make_node("stack", stack_backward, static_cast<int>(tensors.size()));
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      runtime.connect(*node.get(), static_cast<int>(k), tensors[k]);
    }
    node->number[0] = i;
  }
  shape.insert(i, static_cast<std::int64_t>(tensors.size()));
  Tensor out = runtime.empty(shape, dtype);
  if (runtime.watched()) runtime.ran("stack", tensors, {out});
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
