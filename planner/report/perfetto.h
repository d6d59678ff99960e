#pragma once
// One steady step as a trace for Perfetto or chrome://tracing: a process a rank, a thread a stream
// (Trace Event Format, "X" events; times in microseconds).

#include <iosfwd>
#include <span>

#include "run/time_clock.h"

namespace shardfit::report {

/// `result` must hold events (TimeSettings::events) of these programs, in the same order.
void write_perfetto(const run::TimeResult& result, std::span<const run::RankProgram> programs,
                    std::ostream& out);

}  // namespace shardfit::report
