#include "run/memory_clock.h"

#include <algorithm>

#include "run/allocator_settings.h"

namespace shardfit::run {
namespace {

/// Live bytes by category just after an instruction; `from` is the state before `begin`.
ByCategory categories_at(const Program& program, ByCategory from, std::int64_t begin,
                         std::int64_t at) {
  for (std::int64_t i = begin; i <= at; ++i) {
    const Instruction& instruction = program.instructions[static_cast<std::size_t>(i)];
    if (instruction.action != Action::allocate && instruction.action != Action::release) continue;
    const StorageInfo& storage = program.storages[instruction.id];
    const std::int64_t sign = instruction.action == Action::allocate ? 1 : -1;
    from[static_cast<std::size_t>(storage.category)] += sign * storage.bytes;
  }
  return from;
}

}  // namespace

std::vector<RequestedPeak> requested_peaks(const Program& program) {
  std::vector<RequestedPeak> peaks;
  const StorageInfo* storages = program.storages.data();
  const Instruction* instructions = program.instructions.data();
  const auto count = static_cast<std::int64_t>(program.instructions.size());
  std::int64_t live = 0;
  RequestedPeak peak;
  ByCategory at_begin{};  // of the phase
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Instruction& instruction = instructions[i];
    if (instruction.action == Action::allocate) {
      live += storages[instruction.id].bytes;
      if (live > peak.bytes) {
        peak.bytes = live;
        peak.instruction = i;
      }
    } else if (instruction.action == Action::release) {
      live -= storages[instruction.id].bytes;
    } else if (instruction.action == Action::phase) {
      // What a peak consists of is added up only here: most of them are soon exceeded.
      const std::int64_t at = peak.instruction < 0 ? begin - 1 : peak.instruction;
      peak.categories = categories_at(program, at_begin, begin, at);
      peaks.push_back(peak);
      at_begin = categories_at(program, at_begin, begin, i);
      begin = i + 1;
      peak = {live, -1, {}};
    }
  }
  return peaks;
}

std::int64_t rounded_peak(const Program& program, const AllocatorSettings& settings) {
  std::int64_t live = 0, peak = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.action == Action::allocate) {
      live += round_request(program.storages[instruction.id].bytes, settings);
      peak = std::max(peak, live);
    } else if (instruction.action == Action::release) {
      live -= round_request(program.storages[instruction.id].bytes, settings);
    }
  }
  return peak;
}

}  // namespace shardfit::run
