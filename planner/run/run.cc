#include "run/run.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace shardfit::run {
namespace {

/// Instructions, some milliseconds.
constexpr std::int64_t between_checks = 1 << 16;

class Clock {
 public:
  Clock(const Program& program, const RunLimits& limits)
      : program_(program),
        allocator_(limits.total, limits.context, limits.settings),
        stop_(limits.stop),
        handles_(program.storages.size(), no_block),
        units_(std::make_shared<std::vector<std::uint32_t>>(program.storages.size())) {}

  RunResult run() {
    const auto count = static_cast<std::int64_t>(program_.instructions.size());
    for (std::int64_t i = 0; i < count; ++i) {
      if (i % between_checks == 0) check(stop_);
      const Instruction& instruction = program_.instructions[static_cast<std::size_t>(i)];
      switch (instruction.action) {
        case Action::allocate:
          if (!allocate(i, instruction)) return finish();
          break;
        case Action::release:
          release(instruction.id);
          break;
        case Action::phase:
          end_phase(instruction.id);
          break;
        case Action::empty_cache:
          allocator_.empty_cache();
          break;
        case Action::reset_peaks:
          reset_peaks();
          break;
        case Action::record_stream:
          allocator_.record_stream(handles_[instruction.id], instruction.stream);
          break;
        case Action::compute:
        case Action::collective:
        case Action::record_event:
        case Action::wait_event:
        case Action::host_wait:
          break;
      }
    }
    return finish();
  }

 private:
  RunResult finish() {
    result_.retries = allocator_.stats().retries;
    result_.same_capacities = allocator_.same_capacities();
    result_.block_units = std::move(units_);
    return std::move(result_);
  }

  bool allocate(std::int64_t at, const Instruction& instruction) {
    const StorageInfo& storage = program_.storages[instruction.id];
    const BlockHandle handle = allocator_.allocate(storage.bytes, instruction.stream);
    if (handle == no_block) {
      fail(instruction.id);
      return false;
    }
    handles_[instruction.id] = handle;
    if (handle != empty_block) {
      (*units_)[instruction.id] =
          static_cast<std::uint32_t>(allocator_.block_bytes(handle) / FreeBlocks::unit);
    }
    live_[static_cast<std::size_t>(storage.category)] += storage.bytes;
    const std::int64_t now = allocator_.stats().current.allocated;
    if (now > peak_.allocated) {
      peak_.allocated = now;
      peak_.peak_instruction = at;
      peak_.categories = live_;
      peak_.peak_storage = instruction.id;
    }
    return true;
  }

  void release(std::uint32_t id) {
    const StorageInfo& storage = program_.storages[id];
    live_[static_cast<std::size_t>(storage.category)] -= storage.bytes;
    allocator_.free(handles_[id]);
    handles_[id] = no_block;
  }

  void end_phase(std::uint32_t id) {
    const PhaseMark& mark = program_.phases[id];
    const AllocatorStats& stats = allocator_.stats();
    PhaseReading reading = peak_;
    reading.name = mark.name;
    reading.step = mark.step;
    reading.live = mark.live;
    if (mark.live) {
      if (mark.step == 0) read_loading();
      reading.allocated = stats.current.allocated;
      reading.reserved = stats.current.reserved;
      reading.categories = live_;
    } else {
      reading.allocated = stats.peak.allocated;
      reading.reserved = stats.peak.reserved;
      result_.allocated_peak = std::max(result_.allocated_peak, reading.allocated);
      result_.reserved_peak = std::max(result_.reserved_peak, reading.reserved);
    }
    result_.phases.push_back(reading);
    reset_peaks();
  }

  void read_loading() {
    result_.loading = peak_;
    result_.loading.name = "loading";
    result_.loading.allocated = allocator_.stats().peak.allocated;
    result_.loading.reserved = allocator_.stats().peak.reserved;
  }

  void reset_peaks() {
    allocator_.reset_peaks();
    peak_ = {};
    peak_.allocated = allocator_.stats().current.allocated;
    peak_.categories = live_;
  }

  void fail(std::uint32_t storage) {
    RunResult::Failure failure;
    failure.error = allocator_.out_of_memory();
    failure.storage = storage;
    failure.allocated = allocator_.stats().current.allocated;
    failure.reserved = allocator_.stats().current.reserved;
    const std::size_t next = result_.phases.size();
    if (next < program_.phases.size()) {
      failure.phase = program_.phases[next].name;
      failure.step = program_.phases[next].step;
    }
    result_.failure = failure;
  }

  const Program& program_;
  CachingAllocator allocator_;
  const StopCheck* stop_;
  std::vector<BlockHandle> handles_;
  std::shared_ptr<std::vector<std::uint32_t>> units_;
  ByCategory live_{};
  PhaseReading peak_;
  RunResult result_;
};

}  // namespace

std::int64_t requested_at_peaks(const RunResult& run) {
  const auto sum = [](const ByCategory& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  };
  std::int64_t most = sum(run.loading.categories);
  for (const PhaseReading& phase : run.phases) most = std::max(most, sum(phase.categories));
  return most;
}

RunResult run_program(const Program& program, const RunLimits& limits) {
  return Clock(program, limits).run();
}

}  // namespace shardfit::run
