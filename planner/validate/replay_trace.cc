#include "validate/replay_trace.h"

#include <algorithm>

namespace shardfit::validate {

using run::EventKind;
using run::Expectation;
using run::Trace;
using run::TraceEvent;

namespace {

/// The allocator and the blocks of one trace.
class Player {
 public:
  Player(const Trace& trace, const run::AllocatorSettings& settings, bool follow_settings)
      : trace_(trace),
        follow_settings_(follow_settings),
        allocator_(trace.header.total, trace.header.context, settings, trace.header.fraction_value),
        handles_(trace.ids.size(), run::empty_block) {}

  /// Plays the events before `stop`, or up to an allocation that fails; true where one did.
  bool play(std::size_t stop) {
    while (next_ < stop) {
      const TraceEvent& event = trace_.events[next_++];
      switch (event.kind) {
        case EventKind::allocate:
          handles_[event.target] = allocator_.allocate(event.bytes, event.stream);
          if (handles_[event.target] == run::no_block) {
            if (failures.size() < most_kept) failures.push_back({next_ - 1, failure()});
            return true;
          }
          break;
        case EventKind::free:
          allocator_.free(handles_[event.target]);
          break;
        case EventKind::record_stream:
          allocator_.record_stream(handles_[event.target], event.stream);
          break;
        default:
          play_rare(event);
      }
    }
    return false;
  }

  /// Frees the block of the allocation just played; false where it failed.
  bool undo_allocation() {
    run::BlockHandle& handle = handles_[trace_.events[next_ - 1].target];
    if (handle == run::no_block) return false;
    allocator_.free(handle);
    handle = run::no_block;
    return true;
  }

  const run::CachingAllocator& allocator() const { return allocator_; }
  std::size_t next() const { return next_; }
  const run::OutOfMemory& failure() const { return allocator_.out_of_memory(); }

  std::vector<std::string> layout() const {
    std::vector<std::uint64_t> id_of;  // of the block that had the handle last
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      const run::BlockHandle handle = handles_[i];
      if (handle == run::no_block || handle == run::empty_block) continue;
      if (handle >= id_of.size()) id_of.resize(handle + 1);
      id_of[handle] = trace_.ids[i];
    }
    std::vector<std::string> lines;
    for (const run::SegmentView& segment : allocator_.layout()) {
      std::string line = "| " + std::to_string(segment.size) +
                         (segment.small ? " small " : " large ") + std::to_string(segment.stream) +
                         " 0." + std::to_string(segment.pool) +
                         (segment.expandable ? " x :" : " - :");
      for (const run::BlockView& block : segment.blocks) {
        line += " " + std::to_string(block.size);
        if (block.state == run::BlockState::free) {
          line += "f";
        } else {
          line += block.state == run::BlockState::allocated ? "a" : "p";
          line += std::to_string(block.requested) + "@" + std::to_string(id_of[block.handle]);
        }
      }
      lines.push_back(std::move(line));
    }
    return lines;
  }

  std::vector<TraceFailure> failures;
  std::size_t settings_skipped = 0;

 private:
  void play_rare(const TraceEvent& event) {
    const auto index = static_cast<std::size_t>(event.bytes);
    switch (event.kind) {
      case EventKind::empty_cache:
        return allocator_.empty_cache();
      case EventKind::hold:
        return allocator_.hold_events();
      case EventKind::complete:
        return allocator_.complete_events();
      case EventKind::settings:
        if (follow_settings_) return allocator_.set_settings(trace_.settings[index].value);
        ++settings_skipped;
        return;
      case EventKind::fraction:
        return allocator_.set_fraction(trace_.fractions[index].value);
      case EventKind::enter_pool:
        return allocator_.enter_pool(event.target, event.use_on_oom, event.no_split);
      case EventKind::leave_pool:
        return allocator_.leave_pool(event.target);
      case EventKind::delete_pool:
        return allocator_.delete_pool(event.target);
      case EventKind::reset_peaks:
        return allocator_.reset_peaks();
      default:
        return;
    }
  }

  const Trace& trace_;
  bool follow_settings_;
  run::CachingAllocator allocator_;
  std::vector<run::BlockHandle> handles_;
  std::size_t next_ = 0;
};

std::array<std::int64_t, 6> level_numbers(const run::AllocatorLevels& levels) {
  return {levels.allocated, levels.active,   levels.reserved,
          levels.requested, levels.segments, levels.inactive_split};
}

std::array<std::int64_t, 6> numbers_of(Expectation::Kind kind, const run::AllocatorStats& stats) {
  if (kind == Expectation::Kind::values) return level_numbers(stats.current);
  if (kind == Expectation::Kind::counters) {
    return {stats.retries, stats.ooms, stats.driver_allocations, stats.driver_frees};
  }
  auto peak = level_numbers(stats.peak);
  peak[4] = peak[5] = 0;
  return peak;
}

std::string numbers_text(Expectation::Kind kind, const std::array<std::int64_t, 6>& numbers) {
  std::string text = kind == Expectation::Kind::values     ? "="
                     : kind == Expectation::Kind::counters ? "counters"
                                                           : "peak";
  const std::size_t count = kind == Expectation::Kind::values ? 6 : 4;
  for (std::size_t i = 0; i < count; ++i) text += " " + std::to_string(numbers[i]);
  return text;
}

class Comparison {
 public:
  explicit Comparison(const Trace& trace)
      : trace_(trace),
        player_(trace, trace.header.settings, true),
        has_layouts_(
            trace.header.layout_after_each &&
            std::any_of(trace.expectations.begin(), trace.expectations.end(),
                        [](const Expectation& e) { return e.kind == Expectation::Kind::layout; })) {
  }

  TraceReplay run() {
    for (const Expectation& expectation : trace_.expectations) {
      advance(expectation.after);
      ++result_.expectations;
      compare(expectation);
      if (empty_layout_follows(expectation)) compare_layout(expectation);
    }
    advance(trace_.events.size());
    unexpected_error();
    result_.events = trace_.events.size();
    result_.stats = player_.allocator().stats();
    result_.failures = std::move(player_.failures);
    return std::move(result_);
  }

 private:
  /// Plays on; an error counts as expected only where the trace has its text. A trace without any
  /// expectation expects nothing.
  void advance(std::size_t stop) {
    while (player_.next() < stop) {
      unexpected_error();
      failed_ = player_.play(stop);
    }
  }

  /// Reports an error of the event just played that no expectation has asked for.
  void unexpected_error() {
    if (!failed_) return;
    failed_ = false;
    if (trace_.expectations.empty()) return;
    const std::size_t event = player_.next() - 1;
    TraceMismatch mismatch;
    mismatch.where = {trace_.source, trace_.offsets[event], 1};
    mismatch.event = event_text(trace_, event);
    mismatch.expected = "no error";
    mismatch.found = "! " + player_.failure().text();
    add(std::move(mismatch));
  }

  void compare(const Expectation& expectation) {
    std::string expected, found;
    switch (expectation.kind) {
      case Expectation::Kind::error:
        expected = "! " + expectation.texts.front();
        found = "no error";
        if (failed_) found = "! " + player_.failure().text();
        failed_ = false;
        break;
      case Expectation::Kind::layout:
        return compare_layout(expectation);
      default: {
        auto numbers = numbers_of(expectation.kind, player_.allocator().stats());
        if (expectation.kind == Expectation::Kind::values && numbers[5] != expectation.numbers[5]) {
          ++result_.inactive_split_differences;
          numbers[5] = expectation.numbers[5];
        }
        if (numbers == expectation.numbers) return;
        expected = numbers_text(expectation.kind, expectation.numbers);
        found = numbers_text(expectation.kind, numbers);
      }
    }
    if (expected != found) mismatch(expectation, expected, found);
  }

  /// Where a layout stands after every event, values without one say that there is no segment.
  bool empty_layout_follows(const Expectation& expectation) const {
    if (!has_layouts_ || expectation.kind != Expectation::Kind::values) return false;
    const Expectation* next = &expectation + 1;
    return next == trace_.expectations.data() + trace_.expectations.size() ||
           next->kind != Expectation::Kind::layout;
  }

  /// Each line of a layout is an expectation of its own.
  void compare_layout(const Expectation& expectation) {
    const std::vector<std::string> found = player_.layout();
    const std::vector<std::string>& expected = expectation.texts;
    if (!expected.empty()) result_.expectations += expected.size() - 1;
    for (std::size_t i = 0; i < std::max(found.size(), expected.size()); ++i) {
      const std::string want = i < expected.size() ? expected[i] : "no further segment";
      const std::string have = i < found.size() ? found[i] : "no further segment";
      if (want != have) mismatch(expectation, want, have);
    }
  }

  void mismatch(const Expectation& expectation, const std::string& expected,
                const std::string& found) {
    TraceMismatch mismatch;
    mismatch.where = {trace_.source, expectation.offset, 1};
    if (expectation.after > 0) mismatch.event = event_text(trace_, expectation.after - 1);
    mismatch.expected = expected;
    mismatch.found = found;
    add(std::move(mismatch));
  }
  void add(TraceMismatch mismatch) {
    ++result_.mismatched;
    if (result_.mismatches.size() < most_kept) result_.mismatches.push_back(std::move(mismatch));
  }

  const Trace& trace_;
  Player player_;
  bool has_layouts_;
  TraceReplay result_;
  bool failed_ = false;  // the event just played, and no expectation has asked for it yet
};

}  // namespace

TraceReplay replay_trace(const Trace& trace) { return Comparison(trace).run(); }

TraceReplay replay_trace(const Trace& trace, const run::AllocatorSettings& settings) {
  TraceReplay result;
  Player player(trace, settings, false);
  const auto play = [&](std::size_t stop) {
    while (player.next() < stop) player.play(stop);
  };
  for (const Expectation& expectation : trace.expectations) {
    if (expectation.kind != Expectation::Kind::error) continue;
    play(expectation.after);
    if (player.undo_allocation()) ++result.succeeded_instead;
  }
  play(trace.events.size());
  result.events = trace.events.size();
  result.stats = player.allocator().stats();
  result.failures = std::move(player.failures);
  result.settings_skipped = player.settings_skipped;
  return result;
}

run::Trace record_expectations(const Trace& trace) {
  Trace recorded = trace;
  recorded.expectations.clear();
  Player player(trace, trace.header.settings, true);
  const run::TraceHeader& header = trace.header;
  const auto expect = [&](Expectation::Kind kind) {
    Expectation expectation;
    expectation.kind = kind;
    expectation.after = static_cast<std::uint32_t>(player.next());
    if (kind == Expectation::Kind::error) {
      expectation.texts = {player.failure().text()};
    } else if (kind == Expectation::Kind::layout) {
      expectation.texts = player.layout();
    } else {
      expectation.numbers = numbers_of(kind, player.allocator().stats());
    }
    recorded.expectations.push_back(std::move(expectation));
  };
  while (player.next() < trace.events.size()) {
    const bool failed = player.play(player.next() + 1);
    if (failed) expect(Expectation::Kind::error);
    const bool due = header.every > 0 && player.next() % header.every == 0;
    if (due || (failed && header.every > 0 && header.every < 50)) {
      expect(Expectation::Kind::values);
    }
    if (header.layout_after_each) expect(Expectation::Kind::layout);
  }
  if (!header.layout_after_each) {
    expect(Expectation::Kind::values);
    expect(Expectation::Kind::layout);
  }
  expect(Expectation::Kind::peak);
  expect(Expectation::Kind::counters);
  return recorded;
}

}  // namespace shardfit::validate
