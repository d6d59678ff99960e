#include <algorithm>

#include "tensor/autocast.h"
#include "tensor/cub.h"
#include "tensor/embedding_gradient.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

int bits_of(std::int64_t n) {
  int bits = 1;
  while (n > 1) {
    ++bits;
    n >>= 1;
  }
  return bits;
}

/// Rows of the gradient summed by segments of equal indices: where segments start, how many parts
/// of ten rows each has, and the parts' sums in fp32 (cuda/EmbeddingBackwardKernel.cu,
/// embedding_backward_cuda_kernel).
Tensor sum_segments(Runtime& runtime, const Tensor& gradient, std::int64_t n, const Shape& shape,
                    bool bags = false) {
  constexpr std::int64_t rows_per_thread = 10;
  const DeviceTraits& device = runtime.device;
  Tensor out = runtime.empty(shape, gradient.dtype());
  const Tensor offsets = runtime.empty(Shape{n}, DType::i64);
  const Tensor segments = runtime.empty(Shape{}, DType::i64);
  {
    const Tensor unique_keys = runtime.scratch(8 * n);
    runtime.scratch(unique_by_key_scratch(device, n));
  }
  const std::int64_t most_segments = std::min(n, shape[0]);
  const Tensor parts = runtime.empty(Shape{most_segments}, DType::i64);
  const Tensor part_offsets = runtime.empty(Shape{most_segments}, DType::i64);
  runtime.scratch(scan_scratch(most_segments, 8));
  const Tensor total = runtime.empty(Shape{}, DType::i64);
  const std::int64_t most_parts = n / rows_per_thread + most_segments;
  const Tensor part_starts = runtime.empty(Shape{most_parts}, DType::i64);
  const DType sum = is_half(gradient.dtype()) ? DType::f32 : gradient.dtype();
  // Few rows of many parts each are summed in place of the weight, by blocks that know a part's row
  // (measured on release 2.13: fewer rows than four blocks a multiprocessor, more than four parts a
  // row).
  const bool few_rows =
      !bags && shape[0] < 4 * device.multiprocessors && most_parts > 4 * most_segments;
  if (!few_rows) {
    const Tensor part_sums = runtime.empty(Shape{most_parts, shape[1]}, sum);
    return out;
  }
  const Tensor part_rows = runtime.empty(Shape{most_parts}, DType::i64);
  if (sum != gradient.dtype()) const Tensor sums = runtime.empty(shape, sum);
  return out;
}

void embedding_backward(Node& node, Gradients& in, Gradients& out) {
  const Tensor indices = node.load(0);
  out[0] = embedding_gradient(in[0], indices, node.shape);
}

}  // namespace

/// Up to 3072 indices are added by one kernel; more are sorted first, with their places.
Tensor embedding_gradient(const Tensor& of_rows, const Tensor& used, const Shape& shape) {
  Runtime& runtime = of_rows.runtime();
  const Tensor indices = contiguous(used);
  const std::int64_t n = indices.count();
  const Tensor gradient = contiguous(of_rows);
  if (n <= 3072) {
    Tensor out = runtime.empty(shape, gradient.dtype());
    if (runtime.watched()) runtime.ran("embedding", {gradient, indices}, {out});
    return out;
  }
  const Tensor sorted = runtime.empty(indices.shape(), DType::i64);
  const Tensor places = runtime.empty(indices.shape(), DType::i64);
  {
    const Tensor range = runtime.empty(Shape{n}, DType::i64);
    runtime.scratch(radix_sort_scratch(runtime.device, n, bits_of(shape[0])));
  }
  // Indices and places pass through the sort's eight digits of a byte, segments through scans.
  runtime.launched("sort", DType::i64, 8.0 * 2 * 2 * 8 * static_cast<double>(n), 16);
  Tensor out = sum_segments(runtime, gradient, n, shape);
  if (runtime.watched()) runtime.ran("embedding", {gradient, indices}, {out});
  return out;
}

namespace {

/// Zeros of x's shape, the gradient added where the indices say: these wrapped into range and times
/// their strides, summed, sorted with their places (cuda/Indexing.cu, index_put_with_sort_kernel).
/// number: the first indexed dimension; where others stand before it the gradient is turned round.
void index_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  std::vector<Tensor> indices;  // unpacked before anything is made, and held to the end
  for (std::size_t i = 0; i < node.saved.size(); ++i)
    indices.push_back(node.load(static_cast<int>(i)));
  out[0] = runtime.empty(node.shape, in[0].dtype());
  Tensor linear;
  std::int64_t rows = 1;
  const int first = static_cast<int>(node.number[0]);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    Tensor wrapped = runtime.empty(indices[i].shape(), DType::i64);
    const Tensor scaled = runtime.empty(indices[i].shape(), DType::i64);
    wrapped.reset();
    if (!linear) linear = scaled;
    rows *= node.shape[first + static_cast<int>(i)];
  }
  const std::int64_t n = linear.count();
  const Tensor gradient = first > 0 ? clone(in[0], false) : contiguous(in[0]);
  const Tensor sorted = runtime.empty(Shape{n}, DType::i64);
  const Tensor places = runtime.empty(Shape{n}, DType::i64);
  const Tensor range = runtime.empty(Shape{n}, DType::i64);
  runtime.scratch(
      radix_sort_scratch(runtime.device, n, bits_of(std::max<std::int64_t>(rows - 1, 1))));
  if (runtime.watched()) runtime.ran("index", {gradient, linear}, {out[0]});
}

/// Zeros of x's shape to which the gradient is added (FunctionsManual.cpp, gather_backward).
void gather_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = node.runtime->empty(node.shape, in[0].dtype());
  const double element = static_cast<double>(element_size(in[0].dtype()));
  node.runtime->launched("gather", in[0].dtype(),
                         element * static_cast<double>(out[0].count() + 3 * in[0].count()), 2);
}

/// Zeros of the whole shape; the gradient is added at its sorted places (cuda/Indexing.cu,
/// index_put_with_sort_kernel): the index wrapped, times its stride, sorted with the places.
void pick_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor index = node.load(0);
  out[0] = runtime.empty(node.shape, in[0].dtype());
  Tensor wrapped = runtime.empty(index.shape(), DType::i64);
  const Tensor linear = runtime.empty(index.shape(), DType::i64);
  wrapped.reset();
  const Tensor sorted = runtime.empty(index.shape(), DType::i64);
  const Tensor places = runtime.empty(index.shape(), DType::i64);
  const Tensor range = runtime.empty(index.shape(), DType::i64);
  runtime.scratch(1);  // few numbers are sorted by one block
  if (runtime.watched()) runtime.ran("index", {in[0], index}, {out[0]});
}

/// Only the places asked for are read.
void report_index(const Tensor& x, std::vector<Tensor> indices, const Tensor& out) {
  Runtime& runtime = x.runtime();
  if (!runtime.watched()) return;
  Compute cost;
  cost.bytes = 2.0 * static_cast<double>(out.count() * element_size(out.dtype()));
  for (const Tensor& one : indices) {
    cost.bytes += static_cast<double>(one.count() * element_size(one.dtype()));
  }
  indices.insert(indices.begin(), x);
  runtime.ran("index", indices, {out}, cost);
}

}  // namespace

Tensor pick(const Tensor& x, int dim) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "index");
  const Tensor index = runtime.empty(Shape{1}, DType::i64);
  NodeRef node;
  if (runtime.grad_enabled && x.requires_grad()) {
    node = runtime.make_node("index", pick_backward, 1);
    runtime.connect(*node.get(), 0, x);
    node->save(index);
    node->shape = x.shape();
  }
  Shape shape = x.shape();
  shape[dim] = 1;
  Tensor out = runtime.empty(shape, x.dtype());
  report_index(x, {index}, out);
  if (node) runtime.attach(node, out);
  return out;
}

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  Runtime& runtime = weight.runtime();
  const Scoped<const char*> label(runtime.label.kind, "embedding");
  if (weight.rank() != 2 || is_floating(indices.dtype())) {
    throw ShapeError("embedding: weight " + shape_text(weight.shape()) + ", indices in " +
                     dtype_name(indices.dtype()));
  }
  NodeRef node;
  if (runtime.grad_enabled && weight.requires_grad()) {
    node = runtime.make_node("embedding", embedding_backward, 1);
    runtime.connect(*node.get(), 0, weight);
    node->save(indices);
    node->shape = weight.shape();
  }
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  const Tensor flat = reshape(indices, Shape{-1});  // a copy where they are no single run of memory
  Tensor out = runtime.empty(shape, weight.dtype());
  if (runtime.watched()) {  // only the rows asked for are read
    Compute cost;
    cost.bytes = static_cast<double>(indices.count() * element_size(indices.dtype())) +
                 2.0 * static_cast<double>(out.count() * element_size(out.dtype()));
    runtime.ran("embedding", {weight, indices}, {out}, cost);
  }
  if (node) runtime.attach(node, out);
  return out;
}

Tensor index(const Tensor& x, const std::vector<Tensor>& indices, int first) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "index");
  if (indices.empty() || first < 0 || static_cast<int>(indices.size()) + first > x.rank()) {
    throw ShapeError("index: " + std::to_string(indices.size()) + " index tensors for " +
                     shape_text(x.shape()));
  }
  Shape shape = indices.front().shape();
  for (const Tensor& one : indices) shape = broadcast("index", shape, one.shape());
  // Several index tensors must have the same strides, or all are copied
  // (TensorAdvancedIndexing.cpp, AdvancedIndex).
  std::vector<Tensor> wide;
  for (const Tensor& one : indices) wide.push_back(expand(one, shape));
  bool alike = true;
  for (const Tensor& one : wide) alike = alike && one->stride == wide.front()->stride;
  if (!alike) {
    for (Tensor& one : wide) one = contiguous(one);
  }
  for (int i = 0; i < first; ++i) shape.insert(i, x.size(i));
  for (int i = static_cast<int>(indices.size()) + first; i < x.rank(); ++i) {
    shape.push_back(x.size(i));
  }
  NodeRef node;
  if (runtime.grad_enabled && x.requires_grad()) {
    node = runtime.make_node("index", index_backward, 1);
    runtime.connect(*node.get(), 0, x);
    for (const Tensor& one : indices) node->save(one);
    node->shape = x.shape();
    node->number[0] = first;
  }
  Tensor out = runtime.empty(shape, x.dtype());
  report_index(x, indices, out);
  if (node) runtime.attach(node, out);
  return out;
}

namespace {

/// The bags' gradients by sorted index (cuda/EmbeddingBag.cu, embedding_bag_backward_cuda_sum_avg).
void bag_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor indices = node.load(0);
  const std::int64_t n = indices.count();
  const Tensor gradient = contiguous(in[0]);
  const Tensor sorted = runtime.empty(indices.shape(), DType::i64);
  const Tensor places = runtime.empty(indices.shape(), DType::i64);
  {
    const Tensor range = runtime.empty(Shape{n}, DType::i64);
    runtime.scratch(radix_sort_scratch(runtime.device, n, bits_of(node.shape[0])));
  }
  out[0] = sum_segments(runtime, gradient, n, node.shape, true);
  if (runtime.watched()) runtime.ran("embedding_bag", {gradient, indices}, {out[0]});
}

}  // namespace

Tensor embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets) {
  Runtime& runtime = weight.runtime();
  const Scoped<const char*> label(runtime.label.kind, "embedding_bag");
  if (weight.rank() != 2 || indices.rank() != 1 || offsets.rank() != 1) {
    throw ShapeError("embedding_bag: weight " + shape_text(weight.shape()) + ", indices " +
                     shape_text(indices.shape()) + ", offsets " + shape_text(offsets.shape()));
  }
  const std::int64_t bags = offsets.size(0);
  const Tensor bag_size = runtime.empty(Shape{bags}, DType::i64);
  const Tensor bag_of = runtime.empty(indices.shape(), DType::i64);
  Tensor out = runtime.empty(Shape{bags, weight.size(1)}, weight.dtype());
  if (runtime.watched()) {
    Compute cost;
    cost.bytes = static_cast<double>(indices.count()) *
                 static_cast<double>(8 + weight.size(1) * element_size(weight.dtype()));
    runtime.ran("embedding_bag", {weight, indices, offsets}, {out}, cost);
  }
  if (runtime.grad_enabled && weight.requires_grad()) {
    NodeRef node = runtime.make_node("embedding_bag", bag_backward, 1);
    runtime.connect(*node.get(), 0, weight);
    node->save(indices);
    node->save(offsets);
    node->save(bag_of);
    node->save(bag_size);
    node->shape = weight.shape();
    runtime.attach(node, out);
  }
  return out;
}

Tensor gather_along(const Tensor& x, int dim, const Tensor& indices) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "gather");
  if (x.rank() != indices.rank() || dim < -x.rank() || dim >= x.rank()) {
    throw ShapeError("gather: " + shape_text(indices.shape()) + " of " + shape_text(x.shape()));
  }
  NodeRef node;
  if (runtime.grad_enabled && x.requires_grad()) {
    node = runtime.make_node("gather", gather_backward, 1);
    runtime.connect(*node.get(), 0, x);
    node->save(indices);
    node->shape = x.shape();
  }
  Tensor out = runtime.empty(indices.shape(), x.dtype());
  report_index(x, {indices}, out);
  if (node) runtime.attach(node, out);
  return out;
}

Tensor cumsum(const Tensor& x, DType dtype) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "cumsum");
  Tensor out = runtime.empty(x.shape(), dtype);
  const Tensor wide = to(x, dtype);
  // One run of numbers goes to CUB, several to PyTorch's own kernel (cuda/ScanUtils.cuh, scan_dim).
  if (x.count() == x.size(-1)) {
    runtime.scratch(scan_scratch(x.count(), element_size(dtype)));
  }
  if (runtime.watched()) runtime.ran("cumsum", {wide}, {out});
  return out;
}

}  // namespace shardfit::tensor
