#include "tensor/autocast.h"

#include "tensor/ops.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {
namespace {

Tensor cached_cast(const Tensor& tensor, DType dtype) {
  if (!tensor || tensor->on_host || !is_floating(tensor.dtype()) || tensor.dtype() == DType::f64 ||
      tensor.dtype() == dtype) {
    return tensor;
  }
  Runtime& runtime = tensor.runtime();
  Autocast& autocast = runtime.autocast;
  const bool cacheable = autocast.cache_enabled && tensor->leaf_requires_grad &&
                         dtype == autocast.dtype && tensor.dtype() == DType::f32 && !tensor->base;
  if (!cacheable) return to(tensor, dtype);
  if (const Tensor* cast = autocast.cache.find(tensor.get())) return *cast;
  Tensor cast = to(tensor, dtype);
  if (!runtime.stopped()) autocast.cache.add(tensor.get(), cast);
  return cast;
}

}  // namespace

Tensor cast_low(const Tensor& tensor) {
  if (!tensor || !tensor.runtime().autocast.enabled) return tensor;
  return cached_cast(tensor, tensor.runtime().autocast.dtype);
}

Tensor cast_full(const Tensor& tensor) {
  if (!tensor || !tensor.runtime().autocast.enabled) return tensor;
  return cached_cast(tensor, DType::f32);
}

DType full_dtype(const Tensor& tensor, DType dtype) {
  if (!tensor.runtime().autocast.enabled || !is_floating(dtype) || dtype == DType::f64)
    return dtype;
  return DType::f32;
}

}  // namespace shardfit::tensor
