#include "base/units.h"
#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

bool tracks(const Tensor& a) { return a.runtime().grad_enabled && a.requires_grad(); }

int wrap(int dim, int rank) {
  const int i = dim < 0 ? dim + rank : dim;
  if (i < 0 || i >= rank) {
    throw ShapeError("no dimension " + std::to_string(dim) + " of " + std::to_string(rank));
  }
  return i;
}

/// A view with a node that remembers the shape it was taken of.
Tensor view_node(const char* kind, const Tensor& a, const Shape& shape, const Shape& stride,
                 Backward backward, std::int64_t n0 = 0, std::int64_t n1 = 0, std::int64_t n2 = 0,
                 std::int64_t n3 = 0, bool alias = false) {
  Runtime& runtime = a.runtime();
  NodeRef node;
  if (tracks(a)) {
    node = runtime.make_node(kind, backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->shape = a.shape();
    node->number = {n0, n1, n2, n3};
  }
  Tensor out = alias ? runtime.alias_of(a, shape, stride) : runtime.view_of(a, shape, stride);
  runtime.viewed(kind, a, out);
  if (node) runtime.attach(node, out);
  return out;
}

/// Strides that show `a` in another shape without a copy; false if there are none
/// (aten/src/ATen/TensorUtils.cpp, computeStride).
bool view_strides(const Tensor& a, const Shape& shape, Shape& out) {
  out.rank = shape.rank;
  if (a.count() == 0 || a.contiguous()) {
    out = contiguous_strides(shape);
    return true;
  }
  int place = shape.rank - 1;
  std::int64_t base = a->stride[a.rank() - 1];
  std::int64_t have = 1;
  std::int64_t made = 1;
  for (int dim = a.rank() - 1; dim >= 0; --dim) {
    have *= a.size(dim);
    const bool chunk_ends = dim == 0 || (a.size(dim - 1) != 1 && a->stride[dim - 1] != have * base);
    if (!chunk_ends) continue;
    while (place >= 0 && (made < have || shape[place] == 1)) {
      out[place] = made * base;
      made *= shape[place];
      --place;
    }
    if (made != have) return false;
    if (dim > 0) {
      base = a->stride[dim - 1];
      have = 1;
      made = 1;
    }
  }
  return place == -1;
}

Shape inferred(const char* kind, const Tensor& a, const Shape& wanted) {
  Shape shape = wanted;
  std::int64_t known = 1;
  int open = -1;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape[i] == -1 && open < 0) {
      open = i;
    } else if (shape[i] < 0) {
      throw ShapeError(std::string(kind) + ": " + shape_text(wanted) + " is no shape");
    } else {
      known = checked_multiply(known, shape[i]);
    }
  }
  const std::int64_t count = a.count();
  if (open >= 0 && known > 0 && count % known == 0) {
    shape[open] = count / known;
    known *= shape[open];
  }
  if (known != count) {
    throw ShapeError(std::string(kind) + ": " + shape_text(a.shape()) + " cannot become " +
                     shape_text(wanted));
  }
  return shape;
}

void reshape_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = reshape(in[0], node.shape);
}

void transpose_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = transpose(in[0], static_cast<int>(node.number[0]), static_cast<int>(node.number[1]));
}

void permute_backward(Node& node, Gradients& in, Gradients& out) {
  std::vector<int> order(static_cast<std::size_t>(node.shape.rank));
  for (int i = 0; i < node.shape.rank; ++i) order[static_cast<std::size_t>(node.stride[i])] = i;
  out[0] = permute(in[0], order);
}

void unsqueeze_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = squeeze(in[0], static_cast<int>(node.number[0]));
}
void squeeze_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = unsqueeze(in[0], static_cast<int>(node.number[0]));
}

void expand_backward(Node& node, Gradients& in, Gradients& out) {
  std::uint32_t dims = 0;
  const Shape& have = in[0].shape();
  const int lead = have.rank - node.shape.rank;
  for (int i = 0; i < have.rank; ++i) {
    if (i < lead || (node.shape[i - lead] == 1 && have[i] != 1)) dims |= 1U << i;
  }
  Tensor sum = dims ? sum_dims(in[0], dims, true) : in[0];
  out[0] = lead > 0 ? view(sum, node.shape) : sum;
}

/// A zero tensor of the whole shape with the gradient in its place.
void slice_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = node.runtime->empty(node.shape, in[0].dtype());
  if (node.runtime->watched()) node.runtime->ran("slice", {in[0]}, {out[0]});
}

void alias_backward(Node&, Gradients& in, Gradients& out) { out[0] = in[0]; }

void cat_backward(Node& node, Gradients& in, Gradients& out) {
  const int dim = static_cast<int>(node.number[0]);
  std::int64_t start = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t size = node.sizes[i];
    if (node.wants(static_cast<int>(i))) out[i] = slice(in[0], dim, start, start + size);
    start += size;
  }
}

/// The gradients of all parts joined again; zeros stand for parts without one.
void split_backward(Node& node, Gradients& in, Gradients& out) {
  const int dim = static_cast<int>(node.number[0]);
  DType dtype = DType::f32;
  for (const Tensor& gradient : in) {
    if (gradient) dtype = gradient.dtype();
  }
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < in.size(); ++i) {
    Shape shape = node.shape;
    shape[dim] = node.inputs[i].shape[dim];
    parts.push_back(in[i] ? in[i] : node.runtime->empty(shape, dtype));
  }
  out[0] = cat(parts, dim);
}

}  // namespace

Tensor view(const Tensor& a, const Shape& wanted) {
  const Shape shape = inferred("view", a, wanted);
  Shape stride;
  if (!view_strides(a, shape, stride)) {
    throw ShapeError("view: strides of " + shape_text(a.shape()) + " do not allow " +
                     shape_text(shape));
  }
  return view_node("view", a, shape, stride, reshape_backward);
}

Tensor unsafe_view(const Tensor& a, const Shape& wanted) {
  const Shape shape = inferred("unsafe_view", a, wanted);
  Shape stride;
  view_strides(a, shape, stride);
  return view_node("unsafe_view", a, shape, stride, reshape_backward, 0, 0, 0, 0, true);
}

Tensor reshape(const Tensor& a, const Shape& wanted) {
  const Shape shape = inferred("reshape", a, wanted);
  Shape stride;
  if (view_strides(a, shape, stride)) {
    return view_node("view", a, shape, stride, reshape_backward);
  }
  return unsafe_view(clone(a, false), shape);
}

Tensor transpose(const Tensor& a, int dim0, int dim1) {
  const int i = wrap(dim0, a.rank());
  const int j = wrap(dim1, a.rank());
  Shape shape = a.shape();
  Shape stride = a->stride;
  std::swap(shape[i], shape[j]);
  std::swap(stride[i], stride[j]);
  return view_node("transpose", a, shape, stride, transpose_backward, i, j);
}

Tensor permute(const Tensor& a, const std::vector<int>& order) {
  Shape shape;
  Shape stride;
  Shape remembered;
  std::uint32_t seen = 0;
  for (int dim : order) seen |= 1U << wrap(dim, a.rank());
  if (static_cast<int>(order.size()) != a.rank() || seen != (1U << a.rank()) - 1) {
    throw ShapeError("permute: " + shape_text(a.shape()) + " needs each dimension once");
  }
  for (int dim : order) {
    const int i = wrap(dim, a.rank());
    shape.push_back(a.size(i));
    stride.push_back(a->stride[i]);
    remembered.push_back(i);
  }
  Tensor out = view_node("permute", a, shape, stride, permute_backward);
  if (out->grad_fn) out->grad_fn->stride = remembered;
  return out;
}

Tensor unsqueeze(const Tensor& a, int dim) {
  const int i = wrap(dim, a.rank() + 1);
  Shape shape = a.shape();
  Shape stride = a->stride;
  stride.insert(i, i < a.rank() ? a.size(i) * a->stride[i] : 1);
  shape.insert(i, 1);
  return view_node("unsqueeze", a, shape, stride, unsqueeze_backward, i);
}

Tensor squeeze(const Tensor& a, int dim) {
  const int i = wrap(dim, a.rank());
  if (a.size(i) != 1) return a;
  Shape shape = a.shape();
  Shape stride = a->stride;
  shape.erase(i);
  stride.erase(i);
  return view_node("squeeze", a, shape, stride, squeeze_backward, i);
}

Tensor expand(const Tensor& a, const Shape& wanted) {
  Shape shape = wanted;
  Shape stride;
  stride.rank = shape.rank;
  const int lead = shape.rank - a.rank();
  for (int i = 0; i < shape.rank; ++i) {
    if (lead < 0 || shape[i] < -1 || (i < lead && shape[i] < 0)) {
      throw ShapeError("expand: " + shape_text(a.shape()) + " cannot become " + shape_text(wanted));
    }
    if (i < lead) continue;
    const std::int64_t have = a.size(i - lead);
    if (shape[i] == -1) shape[i] = have;
    if (have != shape[i] && have != 1) {
      throw ShapeError("expand: " + shape_text(a.shape()) + " cannot become " + shape_text(wanted));
    }
    stride[i] = have == shape[i] ? a->stride[i - lead] : 0;
  }
  return view_node("expand", a, shape, stride, expand_backward);
}

Tensor slice(const Tensor& a, int dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  const int i = wrap(dim, a.rank());
  if (step < 1) throw ShapeError("slice: steps of " + std::to_string(step));
  const std::int64_t n = a.size(i);
  const auto bound = [n](std::int64_t x) {
    if (x < 0) x += n;
    return x < 0 ? 0 : (x > n ? n : x);
  };
  const std::int64_t from = bound(start);
  const std::int64_t to_end = bound(end);
  Shape shape = a.shape();
  Shape stride = a->stride;
  shape[i] = to_end > from ? (to_end - from + step - 1) / step : 0;
  stride[i] *= step;
  return view_node("slice", a, shape, stride, slice_backward, i);
}

Tensor alias(const Tensor& a) {
  return view_node("alias", a, a.shape(), a->stride, alias_backward);
}

Tensor select(const Tensor& a, int dim, std::int64_t index) {
  const int i = wrap(dim, a.rank());
  if (index < -a.size(i) || index >= a.size(i)) {
    throw ShapeError("select: no place " + std::to_string(index) + " in dimension " +
                     std::to_string(i) + " of " + shape_text(a.shape()));
  }
  Shape shape = a.shape();
  Shape stride = a->stride;
  shape.erase(i);
  stride.erase(i);
  return view_node("select", a, shape, stride, slice_backward, i);
}

std::vector<Tensor> split(const Tensor& a, const std::vector<std::int64_t>& sizes, int dim) {
  Runtime& runtime = a.runtime();
  const int i = wrap(dim, a.rank());
  NodeRef node;
  if (tracks(a)) {
    node = runtime.make_node("split", split_backward, 1);
    runtime.connect(*node.get(), 0, a);
    node->shape = a.shape();
    node->number = {i, 0, 0, 0};
  }
  std::vector<Tensor> parts;
  std::int64_t total = 0;
  for (std::int64_t size : sizes) {
    if (size < 0) throw ShapeError("split: a part of " + std::to_string(size));
    Shape shape = a.shape();
    shape[i] = size;
    total += size;
    parts.push_back(runtime.view_of(a, shape, a->stride));
    runtime.viewed("split", a, parts.back());
    if (node) runtime.attach(node, parts.back());
  }
  if (total != a.size(i)) {
    throw ShapeError("split: parts of " + std::to_string(total) + " in all, of " +
                     shape_text(a.shape()));
  }
  return parts;
}

Tensor contiguous(const Tensor& a) { return a.contiguous() ? a : clone(a, false); }

Tensor tile(const Tensor& a, std::int64_t times) {
  const Scoped<const char*> label(a.runtime().label.kind, "tile");
  Shape shape = a.shape();
  shape[0] *= times;
  Tensor out = a.runtime().empty(shape, a.dtype());
  if (a.runtime().watched()) a.runtime().ran("tile", {a}, {out});
  return out;
}

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty()) throw ShapeError("cat: no tensors");
  Runtime& runtime = tensors.front().runtime();
  const Scoped<const char*> label(runtime.label.kind, "cat");
  const int i = wrap(dim, tensors.front().rank());
  DType dtype = tensors.front().dtype();
  for (const Tensor& t : tensors) dtype = promote(dtype, t.dtype());
  Shape shape = tensors.front().shape();
  shape[i] = 0;
  bool wanted = false;
  for (const Tensor& t : tensors) {
    for (int d = 0; d < std::max(t.rank(), shape.rank); ++d) {
      if (t.rank() != shape.rank || (d != i && t.size(d) != shape[d])) {
        throw ShapeError("cat: " + shape_text(tensors.front().shape()) + " and " +
                         shape_text(t.shape()));
      }
    }
    shape[i] += t.size(i);
    wanted = wanted || t.requires_grad();
  }
  NodeRef node;
  if (wanted && runtime.grad_enabled) {
    node = runtime.make_node("cat", cat_backward, static_cast<int>(tensors.size()));
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      runtime.connect(*node.get(), static_cast<int>(k), tensors[k]);
      node->sizes.push_back(tensors[k].size(i));
    }
    node->number = {i, 0, 0, 0};
  }
  Tensor out = runtime.empty(shape, dtype);
  if (runtime.watched()) runtime.ran("cat", tensors, {out});
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
