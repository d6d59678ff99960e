#pragma once
// Live bytes over a program, as asked for and before any rounding: the peak of each phase, what it
// consists of, and the instruction that reaches it. The allocator is not needed for this.

#include <cstdint>
#include <vector>

#include "run/run.h"
#include "tensor/program.h"

namespace shardfit::run {

struct RequestedPeak {
  std::int64_t bytes = 0;         // highest sum of live storages since the mark before
  std::int64_t instruction = -1;  // at which it was reached; -1: at the mark before
  ByCategory categories{};        // of that moment; they sum to `bytes`
};

/// One entry a phase mark, in order.
std::vector<RequestedPeak> requested_peaks(const Program& program);

/// The highest sum of live storages, each of as many bytes as its request takes in the allocator.
std::int64_t rounded_peak(const Program& program, const AllocatorSettings& settings);

}  // namespace shardfit::run
