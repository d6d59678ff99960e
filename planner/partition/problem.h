#pragma once
// Inside the partition solver: the contracted problem, its device states and candidate solutions.

#include <cstdint>
#include <ctime>
#include <limits>
#include <vector>

#include "partition/partition.h"

namespace shardfit::partition {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
/// For sums of the same numbers in another order, which differ in their last bits.
inline constexpr double slack = 1 + 1e-12;

/// CPU time of this process, in seconds.
inline double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Numbers of used devices a class, as one mixed-radix index; 0: none, states - 1: all.
struct DeviceStates {
  explicit DeviceStates(const std::vector<DeviceClass>& devices);
  int used(int state, int device) const { return state / stride[device] % (limit[device] + 1); }
  int states = 1;
  std::vector<int> stride, limit;
};

struct Problem {
  const CutGraph* graph = nullptr;
  const std::vector<DeviceClass>* devices = nullptr;
  const PartitionOptions* options = nullptr;
  double deadline = infinity;   // of cpu_seconds()
  std::vector<double> latency;  // by unit on the reference device (speed 1; CPU where none else)
  double total_ms = 0;
  double total_bytes = 0;
  std::vector<double> power;  // by class: most reference ms it works off in one ms
  double latency_on(int device, int unit) const {
    const DeviceClass& d = (*devices)[device];
    const Unit& u = graph->units[unit];
    return (d.cpu ? u.cpu_ms : u.accelerator_ms) / d.speed;
  }
};

/// The device class and the units of each part, in pipeline order.
struct Assignment {
  std::vector<int> device;  // by part
  std::vector<int> part;    // by unit
  double objective = infinity;
  bool found() const { return objective < infinity; }
};

/// Cuts one topological order at the best places (a chain DP over its prefixes). Parts above
/// `most_ms` are not looked at.
Assignment cut_order(const Problem& problem, const std::vector<int>& order, double most_ms);

/// Moves single units between parts, through worse states too, while passes improve the objective.
void improve_by_moves(const Problem& problem, Assignment* assignment);

/// The same from a few units thrown into other parts, again and again: `kicks` times or until
/// `deadline` of cpu_seconds(). Parts need not be contiguous.
void improve_by_kicks(const Problem& problem, std::int64_t kicks, double deadline,
                      Assignment* best);

/// What an assignment costs; infinite where a device's bytes or support are violated.
double objective_of(const Problem& problem, const Assignment& assignment);

struct ExactOutcome {
  bool complete = false;  // every partition with objective <= threshold was covered
  Assignment best;        // best of those, where there is one
};

/// Two devices, one after the other: every ideal in the window is a solution; the window tightens.
ExactOutcome solve_two(const Problem& problem, int first, int second, double threshold,
                       std::int64_t most_steps, Certificate* certificate);

/// Any devices: lists the ideals each device state can end at within `threshold`, then links them.
ExactOutcome solve_states(const Problem& problem, double threshold, std::int64_t most_steps,
                          std::int64_t most_ideals, Certificate* certificate);

}  // namespace shardfit::partition
