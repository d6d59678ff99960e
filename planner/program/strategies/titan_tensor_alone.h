#pragma once
// torchtitan's tensor ranks without fully_shard: parameters are DTensors by themselves, gradients
// have the placements that backward gave them, and whoever needs others makes them for a moment
// (pytorch v2.13 torch/distributed/tensor/_redistribute.py, _dispatch.py).

#include <memory>

#include "program/strategies/mesh.h"
#include "program/torchtitan.h"

namespace shardfit::program {

/// What clipping does with such gradients: partial sums of norms' weights are summed, of those and
/// of the embedding's whole gradient every rank has the same.
std::unique_ptr<Strategy> make_titan_tensor_alone(const TitanJob& job, model::Machine& machine);

/// The optimizer's kernel gets gradients placed as their parameters are.
std::unique_ptr<Optimizer> make_titan_tensor_optimizer(std::unique_ptr<Optimizer> inner,
                                                       const TitanJob& job, model::Machine& machine,
                                                       const model::Module& root);

}  // namespace shardfit::program
