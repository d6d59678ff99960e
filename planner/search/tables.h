#pragma once
// Measured surroundings of a prediction: what a process takes outside the allocator
// (model_specs/runtime.yaml) and by how much predictions missed (model_specs/accuracy.yaml).

#include <cstdint>
#include <string>
#include <vector>

#include "spec/cluster_spec.h"

namespace shardfit::search {

/// Bytes outside the allocator on one kind of card.
struct Context {
  std::int64_t low = 0, high = 0;
  std::string source;
  /// The planning value: the middle.
  std::int64_t bytes() const { return low + (high - low) / 2; }
};

/// The row for a compute capability ("9.0"); the last row of the file takes every other.
Context context_of(const std::string& compute_capability);
/// The same for one device: where calibrate measured a bare context on it, that is the least, with
/// a handle of cuBLAS; the most stays that of the row, since a training stack loads more kernels
/// than calibrate does.
Context context_of(const spec::DeviceSpec& device);

/// What NCCL takes of each card for a communicator of `ranks`, with its first exchange; nothing for
/// one rank.
Context exchange_of(std::int64_t ranks);
/// The same for one device: what calibrate measured there with as many ranks, from what rings take
/// to what pairs take beside them; else the table's.
Context exchange_of(const spec::DeviceSpec& device, std::int64_t ranks);

/// Shares of a prediction to add to it to cover what was measured: low <= 0 <= high, not both 0.
struct Accuracy {
  double low = 0, high = 0;
  std::int64_t readings = 0;
  std::string source;
  bool measured = true;  // false: no row of this framework and task; the widest of all rows
};

/// The same on cards of AMD, where nothing was measured: wider by what the table assumes.
Accuracy rocm_accuracy(Accuracy on_cuda);

/// Of a framework and task by their words ("plain-pytorch", "full"): the row's errors and those of
/// the stand-in runtime against real cards, added up.
Accuracy accuracy_of(const std::string& framework, const std::string& task);

}  // namespace shardfit::search
