#pragma once
// Memory for a model that was built without: torch.device("meta").

#include <functional>

#include "model/machine.h"

namespace shardfit::program {

/// Module.to_empty (torch/nn/modules/module.py): children first, then a module's own parameters and
/// buffers, each place by itself. `replaced` sees every place that has a new tensor.
void materialize(model::Machine& machine, const model::Module& root,
                 const std::function<void(model::Module&, std::size_t)>& replaced = {});

}  // namespace shardfit::program
