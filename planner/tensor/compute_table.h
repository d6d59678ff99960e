#pragma once
// The operators of a program, each once.

#include <cstdint>
#include <vector>

#include "base/number_table.h"
#include "tensor/program.h"

namespace shardfit::tensor {

/// Finds an operator that ran before: passes, steps and what is recomputed run the same ones.
class ComputeTable {
 public:
  /// Its index in `computes`, to which it goes where it is new. All of them come through here.
  std::uint32_t id_of(const Compute& compute, std::vector<Compute>& computes);

 private:
  NumberTable numbers_;
  std::uint32_t last_ = 0;  // that was asked for
};

}  // namespace shardfit::tensor
