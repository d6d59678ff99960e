#pragma once
// Exact partition of a graph over devices so that the most loaded device is least loaded.

#include <limits>
#include <string>
#include <vector>

#include "partition/cut_graph.h"

namespace shardfit::partition {

/// Equal devices. Load = (latency of its units) / speed, plus, where it communicates, the cost of
/// every net it holds some but not all pins of (each counted once, added and not overlapped).
struct DeviceClass {
  std::string name;
  int count = 1;
  bool cpu = false;  // latency from Unit::cpu_ms; unsupported units may only stand here
  double speed = 1;
  double bytes = std::numeric_limits<double>::infinity();  // most bytes of one device
  bool communicates = true;
};

struct PartitionOptions {
  /// false: parts need not be a chain of down-sets. A part may then need several pipeline passes.
  bool contiguous = true;
  /// false: the bytes of the part that holds the end of the graph are not limited (PipeDream).
  bool limit_last_part = true;
  double budget_seconds = 0;  // CPU seconds; 0: the step limit alone
  std::int64_t most_steps = 40'000'000;
};

struct Part {
  int device_class = 0;
  std::vector<int> nodes;  // indices of the raw graph, ascending
  double load_ms = 0;      // latency + communication
  double latency_ms = 0;
  double communication_ms = 0;
  double bytes = 0;
};

/// Why the lower bound holds.
struct Certificate {
  std::string bound;        // "exhausted", "work", "largest unit", "minimum cut", "infeasible"
  double threshold_ms = 0;  // every partition below this load was looked for
  std::int64_t units = 0;   // after contraction
  std::int64_t nets = 0;
  std::int64_t ideals = 0;  // enumerated inside the windows
  std::int64_t steps = 0;   // decisions taken
  std::int64_t pairs = 0;   // (ideal, larger ideal) pairs scored
};

struct PartitionResult {
  bool feasible = false;
  double objective_ms = 0;    // infinite where nothing fits or nothing was found
  double lower_bound_ms = 0;  // infinite where it is proven that nothing fits
  double gap = 0;             // (objective - lower bound) / objective; 0: proven
  bool proven = false;
  std::vector<Part> parts;  // in pipeline order where contiguous; devices left empty are left out
  Certificate certificate;
  std::string reason;  // where nothing fits: what does not
};

/// Solves the problem; deterministic without a budget.
PartitionResult solve_partition(const RawGraph& raw, const std::vector<DeviceClass>& devices,
                                const PartitionOptions& options);

/// Load, latency, communication and bytes of a part counted from the raw graph: the definition, for
/// reports and checks.
Part measure_part(const RawGraph& raw, const DeviceClass& device, std::vector<int> nodes);

}  // namespace shardfit::partition
