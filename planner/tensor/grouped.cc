#include "tensor/autocast.h"
#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Shape of one group's product, where it is shared out evenly.
struct GroupShape {
  std::int64_t groups = 1, m = 0, n = 0, k = 0;
};

/// What a kernel of its own for every group at once takes for a while: pointers, strides and shapes
/// of the groups, then tensor maps for each multiprocessor (cuda/GroupMM.cu). Other devices and
/// dtypes multiply group by group (native/GroupedMMUtils.h, _grouped_mm_fallback).
void launch(Runtime& runtime, const GroupShape& shape, const std::vector<Tensor>& operands,
            const Tensor& made) {
  const DType dtype = made.dtype();
  const DeviceTraits& device = runtime.device;
  const bool at_once =
      dtype == DType::bf16 && (device.capability_major == 9 || device.capability_major == 10);
  if (at_once) {
    const std::int64_t pointers = 3 * 8 * round_up(shape.groups, 2);
    const Tensor arguments = runtime.scratch(pointers + shape.groups * (3 * 8 + 3 * 4));
    const bool small = shape.m <= 128 || shape.n <= 128;
    const std::int64_t each = device.capability_major == 9 ? 512 : (small ? 5376 : 5888);
    const Tensor workspace = runtime.scratch(each * device.multiprocessors);
  } else {
    runtime.use_blas();
  }
  if (!runtime.watched()) return;
  Compute c;
  c.groups = shape.groups;
  c.m = shape.m;
  c.n = shape.n;
  c.k = shape.k;
  c.flops = 2.0 * static_cast<double>(shape.groups) * static_cast<double>(shape.m) *
            static_cast<double>(shape.n) * static_cast<double>(shape.k);
  runtime.ran("grouped_mm", operands, {made}, c);
}

/// A result with rows on boundaries of 16 bytes (GroupedMMUtils.h,
/// create_grouped_gemm_output_tensor).
Tensor result(Runtime& runtime, const Shape& shape, DType dtype) {
  Shape padded = shape;
  padded[-1] = round_up(shape[-1], 16 / element_size(dtype));
  return runtime.empty_strided(shape, contiguous_strides(padded), dtype);
}

/// The weights' gradient first, then the input's (FunctionsManual.cpp, _grouped_mm_mat2_grad and
/// _grouped_mm_mat1_grad).
void grouped_backward(Node& node, Gradients& in, Gradients& out) {
  Runtime& runtime = *node.runtime;
  const Tensor x = node.load(0);
  const Tensor weight = node.load(1);
  const Tensor gradient = in[0];
  const std::int64_t groups = weight.size(0), rows = x.size(0);
  const std::int64_t k = weight.size(1), n = weight.size(2);
  if (node.wants(1)) {
    out[1] = runtime.empty_strided(weight.shape(), weight->stride, weight.dtype());
    launch(runtime, {groups, k, n, rows / groups}, {x, gradient}, out[1]);
  }
  if (node.wants(0)) {
    out[0] = result(runtime, x.shape(), x.dtype());
    launch(runtime, {groups, rows / groups, k, n}, {gradient, weight}, out[0]);
  }
}

}  // namespace

Tensor grouped_mm(const Tensor& x, const Tensor& weight, const Tensor& offsets) {
  Runtime& runtime = x.runtime();
  const Scoped<const char*> label(runtime.label.kind, "grouped_mm");
  if (x.rank() != 2 || weight.rank() != 3 || x.size(1) != weight.size(1) ||
      offsets.count() != weight.size(0) || weight.size(0) < 1) {
    throw ShapeError("grouped_mm: " + shape_text(x.shape()) + " times " +
                     shape_text(weight.shape()) + " in " + shape_text(offsets.shape()) + " groups");
  }
  NodeRef node;
  if (runtime.grad_enabled && (x.requires_grad() || weight.requires_grad())) {
    node = runtime.make_node("grouped_mm", grouped_backward, 2);
    runtime.connect(*node.get(), 0, x);
    runtime.connect(*node.get(), 1, weight);
    node->save(x);
    node->save(weight);
    node->save(offsets);
  }
  Tensor out = result(runtime, Shape{x.size(0), weight.size(2)}, x.dtype());
  const std::int64_t groups = weight.size(0);
  launch(runtime, {groups, x.size(0) / groups, weight.size(2), weight.size(1)},
         {x, weight, offsets}, out);
  if (node) runtime.attach(node, out);
  return out;
}

}  // namespace shardfit::tensor
