#pragma once
// Measured cases (docs/validation.md): a job with every setting, and what was read. A prediction
// reads nothing below `measured`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/training.h"
#include "spec/model_spec.h"
#include "spec/node.h"

namespace shardfit::validate {

/// One number that was read. `phase` is the path below `measured`, with dots; "" is the overall
/// peak.
struct Reading {
  std::string phase;
  std::string counter;  // allocated_bytes, reserved_bytes, step_seconds
  std::int64_t measured = 0;
  double seconds = 0;  // of step_seconds, in place of `measured`
};

struct Case {
  std::string id, group, family;
  std::string skipped;  // why it cannot be expressed; empty: it can
  std::string model_path;
  spec::Node overrides;
  program::TrainingJob job;
  std::int64_t memory_bytes = 0;
  std::string device;  // its name or an alias
  std::int64_t count = 1;
  std::string allocator;          // settings string
  bool peaks_from_start = false;  // "backward" was read from the start of the step on
  std::vector<Reading> readings;
  bool ends_out_of_memory = false;
  std::string failing_phase;  // "step 2 backward"
  std::string failing_message;
};

/// Reads a case list. Cases of programs or strategies that are not modelled come with `skipped`
/// set. Throws InputError.
std::vector<Case> read_cases(const std::string& path);

/// The case's model with the numbers it changes. Throws InputError.
spec::ModelSpec model_of(const Case& c);

}  // namespace shardfit::validate
