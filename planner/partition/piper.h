#pragma once
// Piper's problem: stages of contiguous layers, each on t x d devices, one variant a layer, 1F1B
// activations in memory.

#include <string>
#include <vector>

#include "partition/instances/instances.h"
#include "partition/partition.h"

namespace shardfit::partition {

struct PiperStage {
  std::vector<int> nodes;     // indices of the instance, ascending
  std::vector<int> variants;  // aligned with nodes, index into Node::variants[degree]
  int tensor_degree = 1;
  int data_degree = 1;
  int in_flight = 1;           // micro-batches whose activations each device holds
  double time_per_sample = 0;  // in the instance's unit
  double device_bytes = 0;
};

struct PiperResult {
  bool feasible = false;
  double objective = 0;    // most time a sample of a stage; infinite where infeasible
  double lower_bound = 0;  // infinite where it is proven that nothing fits
  double gap = 0;
  bool proven = false;
  std::vector<PiperStage> stages;  // in pipeline order
  Certificate certificate;
  std::string reason;
};

/// Exact outer search over ideals and degrees, exact inner choice of variants (the published solver
/// chooses them greedily). Minimises max time per sample over stages with sum t d <= devices and
/// sum d <= micro-batches, every d dividing those.
PiperResult solve_piper(const PiperInstance& instance, const PartitionOptions& options);

/// Time per sample and bytes of a stage by the definition (notes of Piper's README): sum of times /
/// d, 2 x (bytes + the inside layer's sync bytes) of every crossing edge / (d bandwidth), and the
/// all-reduce 4 (d - 1) w / (d micro-batches bandwidth).
void measure_stage(const PiperInstance& instance, PiperStage* stage);

}  // namespace shardfit::partition
