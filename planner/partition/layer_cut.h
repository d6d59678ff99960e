#pragma once
// The cut of a chain of layers into pipeline stages, where what a layer costs depends on its stage:
// micro-batches in flight, and what a stage holds beside its layers.

#include <functional>
#include <optional>
#include <vector>

namespace shardfit::partition {

/// What a stage of some layers costs, in any two units; infinite where it must not be.
struct StageLoad {
  double first = 0;   // what is made small
  double second = 0;  // of cuts equal in that, what is made small then
};

/// Load of layers `from` .. `to` - 1 on a stage.
using StageLoadOf = std::function<StageLoad(int stage, int from, int to)>;

struct LayerCut {
  std::vector<int> layers;  // of each stage, one at least
  double most_first = 0;    // of all stages
  double most_second = 0;
};

/// The cut whose largest `first` is least, and of these the one whose largest `second` is; of equal
/// ones the earlier stages hold more. Exact: every cut is covered, O(stages layers^2) loads.
/// Nothing where each has an infinite load.
std::optional<LayerCut> cut_layers(int layers, int stages, const StageLoadOf& load);

}  // namespace shardfit::partition
