#pragma once
// Looks into a run: what is alive at one moment, how memory moves over a step, and the least
// capacity in which a program runs.

#include <cstdint>
#include <optional>
#include <vector>

#include "run/run.h"

namespace shardfit::run {

/// A storage that is alive, with the bytes of the block it was handed.
struct LiveStorage {
  std::uint32_t storage = 0;  // index into Program::storages
  std::int64_t block_bytes = 0;
};

/// Everything that is alive after an instruction. The blocks sum to `allocated`, by category too.
struct Census {
  std::int64_t requested = 0;  // bytes asked for
  std::int64_t allocated = 0;  // bytes handed out
  ByCategory requested_by{};
  ByCategory allocated_by{};
  std::vector<LiveStorage> live;  // in the order of their storages
};

/// Of a run of the program, up to and including `instruction`, which must not lie behind an
/// out-of-memory error.
Census live_after(const Program& program, const RunResult& run, std::int64_t instruction);

/// Of a run without an out-of-memory error: allocated bytes over one optimizer step in about `columns` slices of equally many instructions,
/// each the highest value of its slice, and its phase; a phase has one slice at least.
struct Curve {
  std::vector<std::int64_t> allocated;
  std::vector<std::string> phase;
};
Curve memory_curve(const Program& program, const RunResult& run, int step, int columns);

/// The least bytes the allocator must be able to reserve for the program to run to its end (and,
/// where `without_retry`, without giving cached blocks back): a multiple of the driver's 2 MiB
/// page. On the card of `limits`, where what is in use outside the allocator grows or shrinks; where
/// that is no limit, on cards of another total. 2 MiB less does not do; where cached blocks are given back at other moments, another
/// amount below may. CachingAllocator::largest_total where nothing below it does.
std::int64_t least_capacity(const Program& program, const RunLimits& limits, bool without_retry);
/// A capacity, and whether the program runs at it.
struct KnownCapacity {
  std::int64_t bytes = 0;
  bool runs = false;
};
/// The same where the run without a limit is known: between what it asks for and what it reserves.
/// Where an answer is known, too, the result agrees with it: more than `known` where that does not
/// do, no more where it does.
std::int64_t least_capacity(const Program& program, const RunLimits& limits, bool without_retry,
                            const RunResult& unlimited,
                            std::optional<KnownCapacity> known = std::nullopt);

}  // namespace shardfit::run
