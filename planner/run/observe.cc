#include "run/observe.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <memory>

#include "run/recurrence.h"

namespace shardfit::run {
namespace {

constexpr std::int64_t driver_page = 2 << 20;

/// What an instruction does to memory; false where that is an out-of-memory error.
bool apply(const Program& program, const Instruction& instruction, CachingAllocator& allocator,
           Placement& placement) {
  switch (instruction.action) {
    case Action::allocate: {
      const std::int64_t bytes = program.storages[instruction.id].bytes;
      const BlockHandle handle = allocator.allocate(bytes, instruction.stream);
      placement.put(instruction.id, handle);
      return handle != no_block;
    }
    case Action::release:
      allocator.free(placement.take(instruction.id));
      return true;
    case Action::record_stream:
      allocator.record_stream(placement.handle(instruction.id), instruction.stream);
      return true;
    case Action::empty_cache:
      allocator.empty_cache();
      return true;
    default:
      return true;
  }
}

/// Whether a program runs at one capacity and another. What one run says of other capacities is
/// kept, and so are moments of it: another run begins at the last one that would be the same.
class Capacities {
 public:
  Capacities(const Program& program, const RunLimits& limits, bool without_retry)
      : program_(program),
        limits_(limits),
        without_retry_(without_retry),
        count_(program.instructions.size()) {}

  /// What a run says: of which capacities, and where it fails, at which one the request that could
  /// not be served would have been, had all before it gone as it did.
  struct Answer {
    CapacityRange range;
    bool runs = false;
    std::int64_t would_do = 0;
  };
  void know(const RunResult& result) {
    known_.push_back({result.same_capacities, does(!result.failure, result.retries), 0});
  }
  const Answer& ask(std::int64_t capacity) {
    for (const Answer& answer : known_) {
      if (answer.range.holds(capacity)) return answer;
    }
    Moment now = begin(capacity);
    const bool ends = play(now);
    const CachingAllocator& allocator = *now.allocator;
    Answer answer{same_as(allocator), does(ends, allocator.stats().retries), 0};
    if (!ends) {
      const OutOfMemory& failure = allocator.out_of_memory();
      answer.would_do = failure.in_use - allocator.context() + failure.tried;
    }
    known_.push_back(answer);
    return known_.back();
  }
  /// Only capacities from `low` to `high` will be asked about.
  void narrow(std::int64_t low, std::int64_t high) {
    std::erase_if(kept_, [&](const Moment& moment) {
      return moment.range.from > high || moment.range.below <= low;
    });
  }

 private:
  /// A run before its instruction `next`.
  struct Moment {
    std::unique_ptr<CachingAllocator> allocator;
    Placement placement;
    std::size_t next = 0;
    CapacityRange range;  // at which it would stand there, too
  };
  static constexpr std::size_t moments = 16;  // of a run

  /// Of the card, while it has so much beside its context; of a larger one with the same context.
  std::int64_t total_at(std::int64_t capacity) const {
    const std::int64_t least = capacity + limits_.context;
    return limits_.total == CachingAllocator::largest_total ? least
                                                            : std::max(least, limits_.total);
  }
  /// Of what capacities a run speaks: on this card, of no larger ones.
  CapacityRange same_as(const CachingAllocator& allocator) const {
    const std::int64_t most = limits_.total - limits_.context;
    if (allocator.total() != limits_.total) return allocator.same_capacities();
    CapacityRange range = allocator.same_on_card();
    range.below = std::min(range.below, most + 1);
    return range;
  }
  bool does(bool ends, std::int64_t retries) const {
    return ends && (!without_retry_ || retries == 0);
  }

  Moment begin(std::int64_t capacity) const {
    const std::int64_t total = total_at(capacity), context = total - capacity;
    const Moment* best = nullptr;
    for (const Moment& moment : kept_) {
      const bool later = !best || moment.next > best->next;
      if (later && moment.range.holds(capacity)) best = &moment;
    }
    if (best) {
      if (auto allocator = best->allocator->on_card(total, context)) {
        return {std::move(allocator), best->placement, best->next, best->range};
      }
    }
    return {std::make_unique<CachingAllocator>(total, context, limits_.settings),
            Placement(program_),
            0,
            {}};
  }

  /// To the program's end, or false.
  bool play(Moment& now) {
    const std::size_t stride = count_ / moments + 1;
    Recurrence recurrence(program_, now.next);
    std::size_t keep_at = (now.next / stride + 1) * stride;
    while (now.next < count_) {
      if (now.next >= keep_at) {
        check(limits_.stop);
        keep(now);
        keep_at = (now.next / stride + 1) * stride;
      }
      if (now.next == recurrence.next()) {
        const Recurrence::Skip skip = recurrence.look(*now.allocator, now.placement);
        if (skip.passes > 0) {
          now.placement.move_on(skip.of->floor, skip.names());
          now.next += skip.instructions();
          continue;
        }
      }
      const Instruction& instruction = program_.instructions[now.next];
      if (!apply(program_, instruction, *now.allocator, now.placement)) return false;
      ++now.next;
    }
    return true;
  }

  /// A later moment of the same range is worth more.
  void keep(const Moment& now) {
    const CachingAllocator& allocator = *now.allocator;
    Moment moment{allocator.on_card(allocator.total(), allocator.context()), now.placement,
                  now.next, same_as(allocator)};
    if (!moment.allocator || moment.range.from >= moment.range.below) return;
    const auto same = std::find_if(kept_.begin(), kept_.end(), [&](const Moment& one) {
      return one.range.from == moment.range.from && one.range.below == moment.range.below;
    });
    if (same == kept_.end()) {
      kept_.push_back(std::move(moment));
    } else if (same->next < moment.next) {
      *same = std::move(moment);
    }
  }

  const Program& program_;
  const RunLimits& limits_;
  bool without_retry_;
  std::size_t count_;
  std::deque<Answer> known_;
  std::vector<Moment> kept_;
};

std::int64_t pages_of(std::int64_t bytes) { return (bytes + driver_page - 1) / driver_page; }

}  // namespace

Census live_after(const Program& program, const RunResult& run, std::int64_t instruction) {
  std::vector<char> alive(program.storages.size(), 0);
  for (std::int64_t i = 0; i <= instruction; ++i) {
    const Instruction& one = program.instructions[static_cast<std::size_t>(i)];
    if (one.action == Action::allocate) alive[one.id] = 1;
    if (one.action == Action::release) alive[one.id] = 0;
  }
  Census census;
  for (std::size_t s = 0; s < alive.size(); ++s) {
    const std::int64_t block = FreeBlocks::unit * (*run.block_units)[s];
    if (!alive[s] || block == 0) continue;
    const StorageInfo& storage = program.storages[s];
    const auto category = static_cast<std::size_t>(storage.category);
    census.requested += storage.bytes;
    census.allocated += block;
    census.requested_by[category] += storage.bytes;
    census.allocated_by[category] += block;
    census.live.push_back({static_cast<std::uint32_t>(s), block});
  }
  return census;
}

namespace {

/// Where a phase of a step ends, counted in values, and its name.
using PhaseEnd = std::pair<std::size_t, std::string>;

/// Columns of as many values each, named after the phase each begins in.
Curve even_columns(const std::vector<std::int64_t>& values, const std::vector<PhaseEnd>& ends,
                   std::size_t width) {
  Curve curve;
  const std::size_t n = values.size();
  std::size_t phase = 0;
  for (std::size_t column = 0, columns = std::min(width, n); column < columns; ++column) {
    const std::size_t from = column * n / columns, to = (column + 1) * n / columns;
    while (ends[phase].first <= from) ++phase;
    curve.allocated.push_back(*std::max_element(values.begin() + static_cast<std::ptrdiff_t>(from),
                                                values.begin() + static_cast<std::ptrdiff_t>(to)));
    curve.phase.push_back(ends[phase].second);
  }
  return curve;
}

}  // namespace

Curve memory_curve(const Program& program, const RunResult& run, int step, int columns) {
  assert(columns > 0);
  const auto block = [&](std::uint32_t id) {
    return FreeBlocks::unit * static_cast<std::int64_t>((*run.block_units)[id]);
  };
  std::vector<std::int64_t> values;  // one an instruction of the step
  std::vector<PhaseEnd> ends;
  int current = 0;
  std::int64_t allocated = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.action == Action::allocate) allocated += block(instruction.id);
    if (instruction.action == Action::release) allocated -= block(instruction.id);
    if (instruction.action == Action::reset_peaks) ++current;
    if (current < step) continue;
    if (current > step) break;
    if (instruction.action == Action::phase) {
      ends.emplace_back(values.size(), program.phases[instruction.id].name);
    } else {
      values.push_back(allocated);
    }
  }
  if (ends.empty() || ends.back().first < values.size())
    ends.emplace_back(values.size(), ends.empty() ? "step" : ends.back().second);
  const std::size_t n = values.size();
  const auto width = static_cast<std::size_t>(columns);
  if (ends.size() > width / 4) return even_columns(values, ends, width);
  // A phase of less than two columns has one, however short it is; the long ones share the others.
  std::size_t short_phases = 0, long_values = 0, begins = 0;
  const auto is_short = [&](std::size_t length) { return length * width < 2 * n; };
  for (const PhaseEnd& one : ends) {
    const std::size_t length = one.first - begins;
    if (is_short(length)) {
      ++short_phases;
    } else {
      long_values += length;
    }
    begins = one.first;
  }
  Curve curve;
  std::size_t from = 0, shorts_before = 0, longs_before = 0;
  for (std::size_t phase = 0; phase < ends.size() && n > 0; ++phase) {
    const std::size_t end = ends[phase].first;
    if (is_short(end - from)) {
      ++shorts_before;
    } else {
      longs_before += end - from;
    }
    const std::size_t of_long =
        long_values == 0 ? 0 : longs_before * (width - short_phases) / long_values;
    const std::size_t last = std::max(curve.allocated.size() + 1, shorts_before + of_long);
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
                            const RunResult& unlimited, std::optional<KnownCapacity> known) {
  const std::int64_t reserved = std::max(unlimited.reserved_peak, unlimited.loading.reserved);
  Capacities capacities(program, limits, without_retry);
  capacities.know(unlimited);
  // Never less than what is asked for at one moment; and what it reserves where nothing limits it
  // is enough, but for settings that count in shares of the card.
  const std::int64_t asked = pages_of(requested_at_peaks(unlimited));
  std::int64_t low = std::max<std::int64_t>(1, asked) - 1;  // does not run
  std::int64_t high = std::max(low + 1, pages_of(reserved));
  if (known) {
    const std::int64_t pages = known->bytes / driver_page;
    if (!known->runs) {
      low = std::max(low, pages);
      high = std::max(high, low + 1);
    } else if (pages > low) {
      high = std::min(high, pages);
    }
  }
  while (!capacities.ask(high * driver_page).runs) {
    low = high;
    high *= 2;
    if (high * driver_page + limits.context > CachingAllocator::largest_total) {
      return CachingAllocator::largest_total;
    }
  }
  // A failing run says what would have served it, which mostly is where the next request fails, or
  // the end; halves are taken where that leads nowhere.
  std::int64_t next = low + 1;
  for (int hints = 0; high - low > 1; ++hints) {
    if (next <= low || next >= high || hints % 8 == 7) next = low + (high - low) / 2;
    const Capacities::Answer& answer = capacities.ask(next * driver_page);
    if (answer.runs) {
      high = next;
      if (answer.range.holds(next * driver_page))
        high = std::max(low + 1, std::min(next, pages_of(answer.range.from)));
      next = high - 1;
    } else {
      low = next;
      next = pages_of(answer.would_do);
    }
    capacities.narrow((low + 1) * driver_page, (high - 1) * driver_page);
  }
  return high * driver_page;
}

}  // namespace shardfit::run
