#pragma once
// What `list` and `run` print, as text for people or as JSON.

#include <iosfwd>
#include <string>

#include "calibrate/benchmarks.h"
#include "calibrate/reading.h"

namespace shardfit::calibrate {

/// The table of benchmarks; which are waived on this machine, and why.
std::string list_text(const Machine& machine, const RunOptions& options, bool json);

/// What `run` would do on `devices` devices like `facts`, without doing it: bytes and seconds.
std::string dry_run_text(const DeviceFacts& facts, int devices, const Machine& machine,
                         const RunOptions& options, bool json);

std::string findings_text(const Findings& findings);
std::string findings_json(const Findings& findings);

/// Says that nothing was done for want of a device, and why; as JSON too where that was asked for.
void say_waived(const std::string& why, bool json, std::ostream& out, std::ostream& err);

/// The first line of everything that came from a stand-in runtime.
extern const char* const stand_in_words;

}  // namespace shardfit::calibrate
