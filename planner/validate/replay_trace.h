#pragma once
// A trace replayed on the model of the allocator and compared with what PyTorch's answered.

#include <optional>
#include <string>
#include <vector>

#include "run/allocator.h"
#include "run/trace.h"

namespace shardfit::validate {

/// Mismatches and failures kept in detail; all are counted.
inline constexpr std::size_t most_kept = 20;

/// One expectation that does not hold.
struct TraceMismatch {
  Location where;        // of the expectation, or of the event for an error nobody expected
  std::string event;     // the event above it, "" at the start
  std::string expected;  // as the trace has it
  std::string found;     // as the replay has it
};

/// An allocation that failed.
struct TraceFailure {
  std::size_t event = 0;  // index
  run::OutOfMemory why;
};

struct TraceReplay {
  std::size_t events = 0;
  std::size_t expectations = 0, mismatched = 0;  // unexpected errors count as mismatched too
  std::vector<TraceMismatch> mismatches;         // the first `most_kept`
  /// Expectations whose INACTIVE_SPLIT alone differs; they hold.
  std::size_t inactive_split_differences = 0;
  run::AllocatorStats stats;           // at the end
  std::vector<TraceFailure> failures;  // the first `most_kept`
  /// Allocations that failed when the trace was recorded and succeed here: freed at once, as the
  /// program did not go on with them. Only under other settings.
  std::size_t succeeded_instead = 0;
  std::size_t settings_skipped = 0;  // changes of settings in the trace, not followed

  bool holds() const { return mismatched == 0; }
};

/// Replays the events under the trace's own settings and compares every expectation (of
/// INACTIVE_SPLIT the differences are only counted). Works on traces without expectations.
TraceReplay replay_trace(const run::Trace& trace);

/// Replays the events under other settings from the start; changes of settings in the trace are not
/// followed, expectations not compared.
TraceReplay replay_trace(const run::Trace& trace, const run::AllocatorSettings& settings);

/// The trace with the expectations that the replay gives, where its header asks for them (`every`,
/// `layout`): what PyTorch's allocator would have written.
run::Trace record_expectations(const run::Trace& trace);

}  // namespace shardfit::validate
