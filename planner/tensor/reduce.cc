#include <algorithm>

#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

std::int64_t last_power_of_two(std::int64_t n) {
  std::int64_t p = 1;
  while (p * 2 <= n) p *= 2;
  return p;
}

std::int64_t div_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The dimensions of a reduction as the kernel sees them: merged, fastest first, reduced ones in
/// front.
struct ReductionShape {
  std::int64_t inputs_per_output = 1;
  std::int64_t outputs = 1;
  std::int64_t reduced_stride = 0;  // of the fastest reduced dimension, in elements; 0: none left
  std::int64_t kept_stride = 0;
  std::int64_t kept_size = 1;  // of the fastest kept dimension after merging
  int dims = 0;
  int reduced_dims = 0;
};

struct Merged {
  std::int64_t size, stride;
};

std::vector<Merged> merge(const Tensor& a, std::uint32_t dims, bool reduced) {
  std::vector<Merged> list;
  for (int i = a.rank() - 1; i >= 0; --i) {
    if (((dims >> i) & 1U) != (reduced ? 1U : 0U) || a.size(i) == 1) continue;
    list.push_back({a.size(i), a->stride[i]});
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Merged& x, const Merged& y) { return x.stride < y.stride; });
  std::vector<Merged> out;
  for (const Merged& m : list) {
    if (!out.empty() && out.back().stride * out.back().size == m.stride) {
      out.back().size *= m.size;
    } else {
      out.push_back(m);
    }
  }
  return out;
}

ReductionShape shape_of(const Tensor& a, std::uint32_t dims) {
  const std::vector<Merged> reduced = merge(a, dims, true);
  const std::vector<Merged> kept = merge(a, dims, false);
  ReductionShape s;
  for (const Merged& m : reduced) s.inputs_per_output *= m.size;
  for (const Merged& m : kept) s.outputs *= m.size;
  s.reduced_dims = static_cast<int>(reduced.size());
  s.dims = s.reduced_dims + static_cast<int>(kept.size());
  if (!reduced.empty()) s.reduced_stride = reduced.front().stride;
  if (!kept.empty()) {
    s.kept_stride = kept.front().stride;
    s.kept_size = kept.front().size;
  }
  return s;
}

/// Blocks and splits of the reduction kernel (Reduce.cuh, ReduceConfig and setReduceConfig).
struct ReduceConfig {
  static constexpr std::int64_t max_threads = 512;
  std::int64_t num_inputs = 1, num_outputs = 1, step_input = 1, step_output = 1;
  std::int64_t ctas_per_output = 1, block_width = 1, block_height = 1, output_vec = 1;
  bool block_x_reduce = false, block_y_reduce = false, global_reduce = false;

  void split_input(std::int64_t parallelism) { step_input *= parallelism; }
  void split_output(std::int64_t parallelism) { step_output *= parallelism; }
  std::int64_t values_per_thread() const { return div_up(num_inputs, step_input); }
  std::int64_t grid() const { return div_up(num_outputs / output_vec, step_output); }
  void set_block(std::int64_t dim0, std::int64_t dim1) {
    const std::int64_t threads = max_threads / output_vec;
    const std::int64_t pow0 = dim0 < threads ? last_power_of_two(dim0) : threads;
    const std::int64_t pow1 = dim1 < threads ? last_power_of_two(dim1) : threads;
    block_width = std::min<std::int64_t>(pow0, 32);
    block_height = std::min(pow1, threads / block_width);
    block_width = std::min(pow0, threads / block_height);
  }
};

std::int64_t output_vector(const ReductionShape& s) {
  std::int64_t vec = 4;
  while (vec > 1 && s.kept_size % vec != 0) vec /= 2;
  return vec;
}

ReduceConfig configure(const ReductionShape& s, const DeviceTraits& device) {
  ReduceConfig c;
  c.num_outputs = s.outputs;
  c.num_inputs = s.inputs_per_output;
  const bool fastest = s.reduced_dims == s.dims || s.reduced_stride < s.kept_stride;
  std::int64_t dim0 = fastest ? s.inputs_per_output : s.outputs;
  const std::int64_t dim1 = fastest ? s.outputs : s.inputs_per_output;
  const std::int64_t stride = fastest ? s.reduced_stride : s.kept_stride;
  if (stride == 1) {
    if (fastest && dim0 >= 128 && s.dims == 1) {
      dim0 /= 4;  // vectorized along the input
    } else if (!fastest) {
      c.output_vec = output_vector(s);
      dim0 /= c.output_vec;
    }
  }
  c.set_block(std::max<std::int64_t>(dim0, 1), std::max<std::int64_t>(dim1, 1));
  if (s.dims == 0 || fastest) {
    c.split_input(c.block_width);
    c.block_x_reduce = true;
  } else {
    c.split_output(c.block_width);
  }
  constexpr std::int64_t most = 256;
  if (c.values_per_thread() >= std::min(c.block_height * 16, most)) {
    c.split_input(c.block_height);
    c.block_y_reduce = true;
  } else {
    c.split_output(c.block_height);
  }
  const std::int64_t per_sm =
      device.threads_per_multiprocessor() / (c.block_width * c.block_height);
  const std::int64_t target = device.multiprocessors * per_sm;
  const std::int64_t grid = c.grid();
  if (c.block_y_reduce && c.values_per_thread() >= most && grid <= target) {
    const std::int64_t by_grid = div_up(target, grid);
    const std::int64_t by_least = div_up(c.values_per_thread(), 16);
    const std::int64_t by_most = div_up(c.values_per_thread(), most);
    c.ctas_per_output = std::max(std::min(by_grid, by_least), by_most);
    c.global_reduce = c.ctas_per_output > 1;
  }
  return c;
}

int checked_dim(const Tensor& a, int dim) {
  const int i = dim < 0 ? dim + a.rank() : dim;
  if (i < 0 || i >= a.rank()) {
    throw ShapeError("no dimension " + std::to_string(dim) + " of " + shape_text(a.shape()));
  }
  return i;
}

Tensor reduce(const char* kind, const Tensor& a, std::uint32_t dims, bool keep, DType dtype) {
  Runtime& runtime = a.runtime();
  const Scoped<const char*> label(runtime.label.kind, kind);
  Shape shape;
  for (int i = 0; i < a.rank(); ++i) {
    if (!((dims >> i) & 1U)) {
      shape.push_back(a.size(i));
    } else if (keep) {
      shape.push_back(1);
    }
  }
  Tensor out = runtime.empty(shape, dtype);
  const auto [buffer, semaphores] = reduce_scratch(a, dims, dtype);
  if (buffer > 0) {
    const Tensor first = runtime.scratch(buffer);
    const Tensor second = runtime.scratch(semaphores);
  }
  if (runtime.watched()) runtime.ran(kind, {a}, {out});
  return out;
}

void mean_backward(Node& node, Gradients& in, Gradients& out) {
  const int dim = static_cast<int>(node.number[0]);
  Tensor gradient = node.number[1] ? in[0] : unsqueeze(in[0], dim);
  out[0] = div_scalar(expand(gradient, node.shape));
}

void mean_all_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = div_scalar(expand(in[0], node.shape));
}

void mean_dims_backward(Node& node, Gradients& in, Gradients& out) {
  Tensor gradient = in[0];
  if (!node.number[1]) {
    for (int i = 0; i < node.shape.rank; ++i) {
      if ((node.number[0] >> i) & 1) gradient = unsqueeze(gradient, i);
    }
  }
  out[0] = div_scalar(expand(gradient, node.shape));
}

void sum_all_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = expand(in[0], node.shape);
}

void sum_dims_backward(Node& node, Gradients& in, Gradients& out) {
  Tensor gradient = in[0];
  if (!node.number[1]) {
    for (int i = 0; i < node.shape.rank; ++i) {
      if ((node.number[0] >> i) & 1) gradient = unsqueeze(gradient, i);
    }
  }
  out[0] = expand(gradient, node.shape);
}

NodeRef reduction_node(const char* kind, const Tensor& a, Backward backward, std::int64_t n0,
                       std::int64_t n1) {
  if (!a.runtime().grad_enabled || !a.requires_grad()) return {};
  NodeRef node = a.runtime().make_node(kind, backward, 1);
  a.runtime().connect(*node.get(), 0, a);
  node->shape = a.shape();
  node->number = {n0, n1, 0, 0};
  return node;
}

std::uint32_t all_dims(const Tensor& a) { return (1U << a.rank()) - 1; }

}  // namespace

std::pair<std::int64_t, std::int64_t> reduce_scratch(const Tensor& a, std::uint32_t dims,
                                                     DType out) {
  if (!is_floating(a.dtype()) && a.dtype() != DType::i64) return {0, 0};
  const ReductionShape s = shape_of(a, dims);
  const ReduceConfig c = configure(s, a.runtime().device);
  if (!c.global_reduce) return {0, 0};
  const std::int64_t element = std::max<std::int64_t>(element_size(out), 4);  // accumulated in fp32
  std::int64_t bytes = element * c.num_outputs * c.ctas_per_output;
  if (!c.block_x_reduce) bytes *= c.block_width * c.output_vec;
  return {bytes, 4 * c.grid()};
}

Tensor sum_dims(const Tensor& a, std::uint32_t dims, bool keep) {
  // 16 bits are added up in fp32 as they are (ReduceOpsUtils.h, make_reduction_from_out_ty).
  NodeRef node = reduction_node("sum", a, sum_dims_backward, dims, keep);
  Tensor out = reduce("sum", a, dims, keep, full_dtype(a, a.dtype()));
  if (node) a.runtime().attach(node, out);
  return out;
}

Tensor mean(const Tensor& a, int dim, bool keep) {
  const int i = checked_dim(a, dim);
  NodeRef node = reduction_node("mean", a, mean_backward, i, keep);
  Tensor out = reduce("mean", a, 1U << i, keep, a.dtype());
  if (node) a.runtime().attach(node, out);
  return out;
}

Tensor mean_dims(const Tensor& a, std::uint32_t dims, bool keep) {
  if (dims >> a.rank() != 0)
    throw ShapeError("mean: no such dimensions of " + shape_text(a.shape()));
  NodeRef node = reduction_node("mean", a, mean_dims_backward, dims, keep);
  Tensor out = reduce("mean", a, dims, keep, a.dtype());
  if (node) a.runtime().attach(node, out);
  return out;
}

Tensor norm(const Tensor& a, int dim, bool keep) {
  const int i = checked_dim(a, dim);
  return reduce("norm", a, 1U << i, keep, a.dtype());
}

Tensor mean_all(const Tensor& a) {
  NodeRef node = reduction_node("mean", a, mean_all_backward, 0, 0);
  Tensor out = reduce("mean", a, all_dims(a), false, a.dtype());
  if (node) a.runtime().attach(node, out);
  return out;
}

Tensor sum_all(const Tensor& a) {
  const DType dtype = is_floating(a.dtype()) ? full_dtype(a, a.dtype()) : DType::i64;
  NodeRef node = reduction_node("sum", a, sum_all_backward, 0, 0);
  if (!is_floating(a.dtype()) && a.dtype() != dtype) {
    // Truths and small integers are made int64 behind the result (ReduceOpsUtils.h,
    // make_reduction).
    Tensor total = a.runtime().empty({}, dtype);
    const Tensor wide = to(a, dtype);
    const auto [buffer, semaphores] = reduce_scratch(wide, all_dims(wide), dtype);
    if (buffer > 0) {
      const Tensor first = a.runtime().scratch(buffer);
      const Tensor second = a.runtime().scratch(semaphores);
    }
    a.runtime().launched("sum", dtype, 8.0 * static_cast<double>(a.count()));
    return total;
  }
  Tensor out = reduce("sum", a, all_dims(a), false, dtype);
  if (node) a.runtime().attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
