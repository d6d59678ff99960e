#pragma once
// Allocator traces, format 1 (tests/data/allocator/README.md): what a program asked of the caching
// allocator, and what the allocator answered.

#include <array>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostic.h"
#include "base/units.h"
#include "run/allocator_settings.h"

namespace shardfit::run {

enum class EventKind : std::uint8_t {
  allocate,
  free,
  record_stream,
  empty_cache,
  hold,      // events of streams recorded from here on stay incomplete
  complete,  // all of them complete
  settings,
  fraction,
  enter_pool,
  leave_pool,
  delete_pool,
  reset_peaks,
};

struct TraceEvent {
  std::int64_t bytes = 0;    // allocate; settings, fraction: index into their tables
  std::uint32_t target = 0;  // allocate, free, record_stream: block, an index into Trace::ids;
                             // pools: label
  std::uint16_t stream = 0;
  EventKind kind = EventKind::allocate;
  bool use_on_oom = false, no_split = false;  // enter_pool

  bool operator==(const TraceEvent&) const = default;
};

/// What the allocator answered after the first `after` events.
struct Expectation {
  enum class Kind : std::uint8_t {
    values,    // numbers[0..5]: allocated active reserved requested segments inactive_split
    error,     // texts[0]: the allocation failed with it
    layout,    // texts: one segment each
    peak,      // numbers[0..3]: allocated active reserved requested
    counters,  // numbers[0..3]: retries ooms driver_allocations driver_frees
  };
  Kind kind = Kind::values;
  std::uint32_t after = 0;
  std::uint32_t offset = 0;  // in the source
  std::array<std::int64_t, 6> numbers{};
  std::vector<std::string> texts;
};

/// A value of the header with its text.
struct TraceHeader {
  std::string name, about, torch, source;
  std::int64_t total = 0;    // bytes of the card
  std::int64_t context = 0;  // bytes in use outside PyTorch
  std::optional<std::string> conf;
  AllocatorSettings settings;  // of conf
  std::optional<std::string> fraction;
  std::optional<double> fraction_value;
  std::uint32_t streams = 1;
  std::uint32_t every = 0;  // values stand after every so many events; 0: at the end only
  bool layout_after_each = false;
  /// The optional lines that were there, so that writing gives them back.
  bool has_context = false, has_streams = false, has_every = false, has_layout = false;
};

struct Trace {
  struct Settings {
    std::string text;
    AllocatorSettings value;  // after this string
  };
  struct Fraction {
    std::string text;
    double value = 1;
  };

  SourcePtr source;
  TraceHeader header;
  std::vector<TraceEvent> events;
  std::vector<std::uint32_t> offsets;  // of each event in the source
  std::vector<std::uint64_t> ids;      // of each block, in order of allocation
  std::vector<Settings> settings;
  std::vector<Fraction> fractions;
  std::vector<Expectation> expectations;  // in order
};

/// Largest trace that is read.
inline constexpr Bytes largest_trace{256LL << 20};

/// The trace of a text. Faults of form and of sense (a block freed twice, a stream that is not
/// there, a pool left that was not entered, ...) go to `faults`; reading stops after the most that
/// are shown. The result is good for a replay where there were none.
Trace read_trace(const SourcePtr& source, Diagnostics& faults);

/// Writes header, events and expectations; reading that back gives the same trace.
void write_trace(const Trace& trace, std::ostream& out);

/// One event as it stands in a file: "a 17 4096 0".
std::string event_text(const Trace& trace, std::size_t event);

}  // namespace shardfit::run
