#pragma once
// A program run against the memory clock and the caching allocator: live bytes by category, peaks
// by phase, and the out-of-memory error where there is one.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "run/allocator.h"
#include "tensor/program.h"

namespace shardfit::run {

using ByCategory = std::array<std::int64_t, category_count>;

/// What one phase reached. Peaks run from the previous mark; live values are at the mark.
struct PhaseReading {
  std::string name;
  int step = 0;
  bool live = false;
  std::int64_t allocated = 0;  // peak, or live bytes where `live`
  std::int64_t reserved = 0;
  std::int64_t peak_instruction = -1;  // at which allocated was reached
  ByCategory categories{};             // requested bytes at that moment
  std::uint32_t peak_storage = 0;      // allocated by that instruction
};

struct RunResult {
  std::vector<PhaseReading> phases;  // in order; one a mark
  PhaseReading loading;              // peaks up to the mark of what is live once loaded
  std::int64_t allocated_peak = 0;   // after loading
  std::int64_t reserved_peak = 0;
  std::int64_t retries = 0;
  /// What each storage was handed, in units of 512 bytes; 0 where it was not reached.
  std::shared_ptr<const std::vector<std::uint32_t>> block_units;
  /// With any of these the run is the same, to its end or to its failure.
  CapacityRange same_capacities;
  /// The failing request: the error, the phase it would have belonged to, the storage.
  struct Failure {
    OutOfMemory error;
    std::string phase;
    int step = 0;
    std::uint32_t storage = 0;
    std::int64_t allocated = 0, reserved = 0;
  };
  std::optional<Failure> failure;
};

/// Bytes the program asked for where a phase's allocated bytes peaked, the most of all phases: no
/// allocator runs it in less.
std::int64_t requested_at_peaks(const RunResult& run);

struct RunLimits {
  std::int64_t total = CachingAllocator::largest_total;  // what the runtime reports
  std::int64_t context = 0;                              // in use outside the allocator
  AllocatorSettings settings;
  const StopCheck* stop = nullptr;  // asked now and then; a run throws Stopped
};

RunResult run_program(const Program& program, const RunLimits& limits);

}  // namespace shardfit::run
