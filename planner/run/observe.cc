#include "run/observe.h"

#include <algorithm>
#include <cassert>

#include "run/memory_clock.h"

namespace shardfit::run {
namespace {

constexpr std::int64_t driver_page = 2 << 20;

/// Replays and calls `visit(index, allocator)` after each instruction until it returns false.
template <class Visit>
std::vector<BlockHandle> replay(const Program& program, CachingAllocator& allocator, Visit visit) {
  std::vector<BlockHandle> handles(program.storages.size(), no_block);
  const auto count = static_cast<std::int64_t>(program.instructions.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const Instruction& instruction = program.instructions[static_cast<std::size_t>(i)];
    if (instruction.action == Action::allocate) {
      const std::int64_t bytes = program.storages[instruction.id].bytes;
      const BlockHandle handle = allocator.allocate(bytes, instruction.stream);
      if (handle == no_block) return handles;
      handles[instruction.id] = handle;
    } else if (instruction.action == Action::release) {
      allocator.free(handles[instruction.id]);
      handles[instruction.id] = no_block;
    } else if (instruction.action == Action::record_stream) {
      allocator.record_stream(handles[instruction.id], instruction.stream);
    } else if (instruction.action == Action::empty_cache) {
      allocator.empty_cache();
    }
    if (!visit(i, instruction)) return handles;
  }
  return handles;
}

CachingAllocator allocator_of(const RunLimits& limits) {
  return CachingAllocator(limits.total, limits.context, limits.settings);
}

}  // namespace

Census live_after(const Program& program, const RunLimits& limits, std::int64_t instruction) {
  CachingAllocator allocator = allocator_of(limits);
  const std::vector<BlockHandle> handles = replay(
      program, allocator, [&](std::int64_t i, const Instruction&) { return i < instruction; });
  Census census;
  for (std::size_t s = 0; s < handles.size(); ++s) {
    if (handles[s] == no_block || handles[s] == empty_block) continue;
    const StorageInfo& storage = program.storages[s];
    const std::int64_t block = allocator.block_bytes(handles[s]);
    const auto category = static_cast<std::size_t>(storage.category);
    census.requested += storage.bytes;
    census.allocated += block;
    census.requested_by[category] += storage.bytes;
    census.allocated_by[category] += block;
    census.live.push_back({static_cast<std::uint32_t>(s), block});
  }
  return census;
}

Curve memory_curve(const Program& program, const RunLimits& limits, int step, int columns) {
  assert(columns > 0);
  std::vector<std::int64_t> values;  // one an instruction of the step
  std::vector<std::pair<std::size_t, std::string>> ends;
  int current = 0;
  CachingAllocator allocator = allocator_of(limits);
  replay(program, allocator, [&](std::int64_t, const Instruction& instruction) {
    if (instruction.action == Action::reset_peaks) ++current;
    if (current < step) return true;
    if (current > step) return false;
    if (instruction.action == Action::phase) {
      ends.emplace_back(values.size(), program.phases[instruction.id].name);
    } else {
      values.push_back(allocator.stats().current.allocated);
    }
    return true;
  });
  if (ends.empty() || ends.back().first < values.size())
    ends.emplace_back(values.size(), ends.empty() ? "step" : ends.back().second);
  Curve curve;
  const std::size_t n = values.size();
  const auto width = static_cast<std::size_t>(columns);
  std::size_t from = 0;
  for (std::size_t phase = 0; phase < ends.size() && n > 0; ++phase) {
    const std::size_t end = ends[phase].first;
    const std::size_t last = std::max(curve.allocated.size() + 1, end * width / n);
    if (end == from && from > 0) {  // it allocates and frees nothing
      curve.allocated.push_back(values[from - 1]);
      curve.phase.push_back(ends[phase].second);
    }
    while (from < end && curve.allocated.size() < last) {
      const std::size_t left = last - curve.allocated.size();
      const std::size_t to = from + std::max<std::size_t>(1, (end - from) / left);
      const auto begin = values.begin();
      curve.allocated.push_back(*std::max_element(begin + static_cast<std::ptrdiff_t>(from),
                                                  begin + static_cast<std::ptrdiff_t>(to)));
      curve.phase.push_back(ends[phase].second);
      from = to;
    }
    from = end;
  }
  return curve;
}

std::int64_t least_capacity(const Program& program, const RunLimits& limits, bool without_retry) {
  RunLimits none = limits;
  none.total = CachingAllocator::largest_total;
  const RunResult free = run_program(program, none);
  if (free.failure) return CachingAllocator::largest_total;
  return least_capacity(program, limits, without_retry, free);
}

std::int64_t least_capacity(const Program& program, const RunLimits& limits, bool without_retry,
                            const RunResult& unlimited) {
  const std::int64_t reserved = std::max(unlimited.reserved_peak, unlimited.loading.reserved);
  const auto pages_of = [](std::int64_t bytes) { return (bytes + driver_page - 1) / driver_page; };
  const auto does = [&](const RunResult& result) {
    return !result.failure && (!without_retry || result.retries == 0);
  };
  // A run holds for all capacities at which the driver would have answered the same.
  std::vector<std::pair<CapacityRange, bool>> known{{unlimited.same_capacities, does(unlimited)}};
  const auto runs = [&](std::int64_t pages) {
    for (const auto& [range, answer] : known) {
      if (range.holds(pages * driver_page)) return answer;
    }
    RunLimits tried = limits;
    tried.total = pages * driver_page + limits.context;
    const RunResult result = run_program(program, tried);
    known.emplace_back(result.same_capacities, does(result));
    return known.back().second;
  };
  // Never less than what is asked for at one moment; and what it reserves where nothing limits it
  // is enough, but for settings that count in shares of the card.
  std::int64_t asked = 0;
  for (const RequestedPeak& peak : requested_peaks(program)) asked = std::max(asked, peak.bytes);
  std::int64_t low = std::max<std::int64_t>(1, pages_of(asked)) - 1;  // does not run
  std::int64_t high = std::max(low + 1, pages_of(reserved));
  if (runs(low + 1)) return (low + 1) * driver_page;
  while (!runs(high)) {
    low = high;
    high *= 2;
    if (high * driver_page + limits.context > CachingAllocator::largest_total) {
      return CachingAllocator::largest_total;
    }
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (runs(middle) ? high : low) = middle;
  }
  return high * driver_page;
}

}  // namespace shardfit::run
