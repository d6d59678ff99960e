#include "program/offload.h"

#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using tensor::Packed;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Tensor;

struct OnHost : Packed {
  Runtime* runtime = nullptr;
  tensor::Shape shape, stride;
  DType dtype = DType::f32;
  Tensor unpack() override {
    const Scoped<const char*> label(runtime->label.kind, "offloaded_tensor");
    return runtime->empty_strided(shape, stride, dtype);
  }
};

struct OffloadHooks : tensor::SavedTensorHooks {
  explicit OffloadHooks(bool pinned_memory) : pinned(pinned_memory) {}
  std::shared_ptr<Packed> pack(const Tensor& tensor) override {
    auto packed = std::make_shared<OnHost>();
    packed->runtime = &tensor.runtime();
    packed->shape = tensor.shape();
    packed->stride = pinned ? tensor::contiguous_strides(tensor.shape()) : tensor->stride;
    packed->dtype = tensor.dtype();
    // A pinned buffer is row-major: a tensor that is not is made so on the device first.
    if (pinned && !tensor.contiguous()) {
      const Scoped<bool> no_grad(tensor.runtime().grad_enabled, false);
      tensor::clone(tensor, false);
    }
    return packed;
  }
  bool pinned;
};

}  // namespace

std::unique_ptr<tensor::SavedTensorHooks> offload_hooks(bool pinned) {
  return std::make_unique<OffloadHooks>(pinned);
}

}  // namespace shardfit::program
