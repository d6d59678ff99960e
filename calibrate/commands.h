#pragma once
// What each command does, from options to an exit code. Throws InputError.

#include <iosfwd>
#include <optional>
#include <string>

#include "calibrate/benchmarks.h"

namespace shardfit::calibrate {

struct CommandOptions {
  RunOptions run;
  bool json = false;
  bool dry_run = false;
  std::string on = "h200";         // device of a dry run where there is none
  std::string plan;                // plan.json
  std::string option;              // of the plan; "": the recommended one
  std::string programs;            // folder of its programs; "": beside the plan
  std::string profile;             // file to write; "": none
  std::string name;                // of the device in the profile; "": as the catalogue has it
  std::string budget = "60 s";     // of GPU time, for confirm
  std::string margin = "512 MiB";  // of a device, never taken
};

/// --margin in bytes.
std::int64_t margin_of(const CommandOptions& options);

int list_command(const CommandOptions& options, std::ostream& out);
int run_command(CommandOptions options, std::ostream& out, std::ostream& err);
int confirm_command(const CommandOptions& options, std::ostream& out, std::ostream& err);
int smoke_command(const CommandOptions& options, std::ostream& out, std::ostream& err);

// On the devices; null objects of a build without CUDA say why not.

/// Runs the chosen rows one after the other on one device; what fails or is waived is noted, and
/// the next one runs. `progress` gets a line a row.
Findings run_benchmarks(const Machine& machine, const RunOptions& options, std::ostream& progress);

}  // namespace shardfit::calibrate
