#include "run/run.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "base/number_table.h"
#include "run/recurrence.h"

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
        placement_(program),
        recurrence_(program),
        units_(std::make_shared<std::vector<std::uint32_t>>(program.storages.size())) {}

  RunResult run() {
    const auto count = static_cast<std::int64_t>(program_.instructions.size());
    for (std::int64_t i = 0; i < count; ++i) {
      if (i % between_checks == 0) check(stop_);
      if (static_cast<std::size_t>(i) == recurrence_.next()) {
        i += static_cast<std::int64_t>(skip_passes(static_cast<std::size_t>(i)));
        if (i == count) break;
      }
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
          allocator_.record_stream(placement_.handle(instruction.id), instruction.stream);
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

  static bool is_mark(const Instruction& instruction) {
    return instruction.action == Action::phase || instruction.action == Action::reset_peaks;
  }
  /// Whether passes have marks.
  bool has_marks(const Repeat& passes) const {
    const auto first =
        program_.instructions.begin() + static_cast<std::ptrdiff_t>(passes.first_instruction);
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(passes.length), is_mark);
  }

  /// What else must be alike before two passes: the highest moment since the last mark, at the same
  /// place of a pass where passes have marks.
  std::uint64_t peak_key(std::int64_t at) const {
    const bool of_pass = has_marks(recurrence_.repeat()) && peak_.peak_instruction >= 0;
    std::uint64_t key = mixed(0, static_cast<std::uint64_t>(peak_.allocated));
    key = mixed(key, static_cast<std::uint64_t>(of_pass ? at - peak_.peak_instruction
                                                        : -1 - peak_.peak_instruction));
    for (const std::int64_t bytes : peak_.categories) {
      key = mixed(key, static_cast<std::uint64_t>(bytes));
    }
    return key;
  }

  /// Later by so many instructions of passes that are alike.
  PhaseReading moved(PhaseReading reading, std::size_t instructions) const {
    if (reading.peak_instruction < 0) return reading;
    reading.peak_instruction += static_cast<std::int64_t>(instructions);
    reading.peak_storage =
        program_.instructions[static_cast<std::size_t>(reading.peak_instruction)].id;
    return reading;
  }

  /// Instructions from `at` on, before which a pass begins, that would do what those of passes
  /// before them did: what was found there is taken for them. 0 where they have to be run.
  std::size_t skip_passes(std::size_t at) {
    const std::uint64_t key = peak_key(static_cast<std::int64_t>(at));
    const Recurrence::Skip skip = recurrence_.look(allocator_, placement_, key);
    if (skip.passes == 0) return 0;
    const std::size_t period = skip.period * skip.of->length;
    const std::uint32_t names = skip.period * skip.of->storages;
    std::size_t before = result_.phases.size();
    for (std::size_t i = at - period; i < at; ++i) {
      before -= program_.instructions[i].action == Action::phase ? 1 : 0;
    }
    for (std::size_t i = at; i < at + skip.instructions(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (instruction.action == Action::allocate && instruction.id >= skip.of->floor) {
        (*units_)[instruction.id] = (*units_)[instruction.id - names];
      } else if (instruction.action == Action::phase) {
        PhaseReading reading = moved(result_.phases[before++], period);
        const PhaseMark& mark = program_.phases[instruction.id];
        reading.name = mark.name;
        reading.step = mark.step;
        result_.phases.push_back(std::move(reading));
      }
    }
    if (has_marks(*skip.of)) peak_ = moved(peak_, skip.instructions());
    placement_.move_on(skip.of->floor, skip.names());
    return skip.instructions();
  }

  bool allocate(std::int64_t at, const Instruction& instruction) {
    const StorageInfo& storage = program_.storages[instruction.id];
    const BlockHandle handle = allocator_.allocate(storage.bytes, instruction.stream);
    if (handle == no_block) {
      fail(instruction.id);
      return false;
    }
    placement_.put(instruction.id, handle);
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
    allocator_.free(placement_.take(id));
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
  Placement placement_;
  Recurrence recurrence_;
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
