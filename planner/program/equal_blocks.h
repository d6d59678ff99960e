#pragma once
// Which blocks of a built model are alike: same classes, constants and tensors, in a row.

#include <cstdint>
#include <map>
#include <vector>

#include "model/machine.h"

namespace shardfit::program {

/// A unit that recompute can wrap, with all that is in it, in one order for all of its row.
struct EqualBlock {
  const model::Module* module = nullptr;
  std::size_t row = 0, place = 0, length = 0;  // its row, its place there, how many are in it
  const EqualBlock* before = nullptr;          // its neighbour
  std::vector<std::uint32_t> labels;           // of its modules
  std::vector<tensor::Tensor> tensors;         // parameters and buffers
};

/// The model's units, in rows: neighbours under one module that differ in nothing but which tensors
/// they have. Made when the model is whole: adapters in their places, dtypes and gradients settled.
std::map<const model::Module*, EqualBlock> equal_blocks(const model::Machine& machine);

}  // namespace shardfit::program
