#include "program/clip.h"

#include "program/optimizer.h"
#include "tensor/ops.h"

namespace shardfit::program {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

/// torch._foreach_norm: one buffer of partial sums for the group, a number for each tensor
/// (aten/src/ATen/native/cuda/ForeachReduceOp.cu).
std::vector<Tensor> foreach_norm(const std::vector<Tensor>& group, std::int64_t largest) {
  Runtime& runtime = group.front().runtime();
  constexpr std::int64_t chunk = 65536;
  std::int64_t most = (largest + chunk - 1) / chunk;
  for (const Tensor& p : group) most = std::max(most, (p.count() + chunk - 1) / chunk);
  const auto n = static_cast<std::int64_t>(group.size());
  const Tensor partial = runtime.empty(Shape{n * most}, DType::f32);
  std::vector<Tensor> norms;
  for (const Tensor& p : group) norms.push_back(runtime.empty({}, p->grad.dtype()));
  foreach_ran("foreach_norm", group, 1, 1);
  return norms;
}

/// max_norm / (total_norm + 1e-6): a sum, its reciprocal, the product (torch/_tensor.py, __rdiv__).
Tensor coefficient_of(const Tensor& total) {
  const Tensor shifted = tensor::add_scalar(total);
  const Tensor inverse = tensor::div_scalar(shifted);
  return tensor::mul_scalar(inverse);
}

}  // namespace

Tensor clip_gradients(const std::vector<Tensor>& all, bool foreach, const ClippedParts& parts) {
  std::vector<Tensor> parameters;
  for (const Tensor& p : all) {
    if (p->grad) parameters.push_back(p);
  }
  if (parameters.empty()) return {};
  Runtime& runtime = parameters.front().runtime();
  const Scoped<tensor::Label> label(runtime.label, {"clip", 0, false});
  std::vector<Tensor> norms;
  DType dtype = DType::f32;
  for (const auto& group : dtype_groups(parameters)) {
    if (foreach) {
      const std::vector<Tensor> summed = parts.summed ? parts.summed() : std::vector<Tensor>{};
      for (Tensor& norm : foreach_norm(group, parts.largest)) norms.push_back(std::move(norm));
    } else {
      for (const Tensor& p : group) {
        norms.push_back(tensor::sum_dims(p->grad, (1U << p.rank()) - 1, false));
      }
    }
    dtype = group.front()->grad.dtype();
  }
  if (norms.empty()) return {};
  const auto n = static_cast<std::int64_t>(norms.size());
  std::vector<Tensor> divided;
  for (std::size_t i = 0; i < parts.shared; ++i) divided.push_back(runtime.empty({}, dtype));
  Tensor stacked = runtime.empty(Shape{n}, dtype);
  divided.clear();
  Tensor whole = parts.whole_norms ? parts.whole_norms(stacked) : Tensor();
  Tensor total = runtime.empty({}, dtype);
  runtime.launched("stack", dtype, 8.0 * static_cast<double>(n));
  runtime.launched("norm", dtype, 4.0 * static_cast<double>(n));
  whole.reset();
  stacked.reset();
  norms.clear();
  const Tensor coefficient = coefficient_of(total);
  const Tensor clamped = tensor::mul_scalar(coefficient);
  for (const auto& group : dtype_groups(parameters)) {
    if (foreach) {
      foreach_ran("foreach_mul", group, 1, 2);
    } else {
      each_ran("mul", group, 1, 2);
    }
  }
  return total;
}

Tensor unscale_gradients(const Tensor& scale) {
  Runtime& runtime = scale.runtime();
  const Scoped<tensor::Label> label(runtime.label, {"grad_scaler", 0, false});
  Tensor wide = tensor::to(scale, DType::f64);
  Tensor reciprocal = tensor::div_scalar(wide);
  wide.reset();
  const Tensor inverse = tensor::to(reciprocal, DType::f32);
  reciprocal.reset();
  const Tensor found = runtime.empty({}, DType::f32);
  Tensor found_of_device = runtime.empty({}, DType::f32);
  const Tensor inverse_of_device = runtime.empty({}, DType::f32);
  return found_of_device;
}

}  // namespace shardfit::program
