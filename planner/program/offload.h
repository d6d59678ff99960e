#pragma once
// Saved tensors on the host (torch/autograd/graph.py, save_on_cpu).

#include <memory>

#include "tensor/runtime.h"

namespace shardfit::program {

/// Hooks that keep no bytes on the device for a saved tensor and allocate it again when it is needed.
std::unique_ptr<tensor::SavedTensorHooks> offload_hooks(bool pinned);

}  // namespace shardfit::program
