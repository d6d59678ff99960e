#pragma once
// The programs of all ranks of a job played together against the time clock: the host of each rank
// queues instructions in order, each stream runs its operators in order, events order streams, and
// an exchange begins when its last rank arrives.

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "run/machine.h"
#include "tensor/program.h"

namespace shardfit::run {

/// A program and the ranks that run it. One program may stand for several equal ranks: those that
/// exchange with ranks of the same programs.
struct RankProgram {
  const Program* program = nullptr;
  std::vector<std::int32_t> ranks;  // empty: program->rank
};

/// Something that occupied a stream.
struct TimedEvent {
  std::uint32_t program = 0;  // index into the programs given
  std::uint8_t stream = 0;
  bool collective = false;
  std::uint32_t index = 0;  // into Program::computes or Program::collectives
  double start = 0;         // seconds from the beginning of the steady step
  double end = 0;
};

struct StreamTime {
  std::string name;
  double busy_seconds = 0;
};

/// One program's steady step. Seconds within it: idle + compute + exposed = step_seconds.
struct RankTime {
  std::vector<std::int32_t> ranks;
  std::vector<StreamTime> streams;
  double compute_seconds = 0;   // any operator runs
  double idle_seconds = 0;      // nothing runs
  double host_seconds = 0;      // the host works
  double exchange_bytes = 0;    // over this rank's link
  double exchange_seconds = 0;  // any exchange runs
  double exposed_seconds = 0;   // of these, with no operator beside it
  double hidden_seconds = 0;
};

struct TimeResult {
  double step_seconds = 0;  // of the last step, all ranks done
  double low_seconds = 0, high_seconds = 0;
  std::vector<RankTime> ranks;     // one a program given
  std::vector<TimedEvent> events;  // of the steady step, where asked for
  /// Of the rank with most: bytes, seconds, exposed and hidden.
  const RankTime& busiest_exchange() const;
};

struct TimeSettings {
  bool events = false;
};

/// Programs that cannot be played to their end: an exchange some rank never comes to.
struct TimeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The last step of the programs, which must record their operators
/// (TrainingJob::record_computes), after the one before it. Throws TimeError where the ranks'
/// exchanges do not match or the machine lacks a number.
TimeResult run_time(std::span<const RankProgram> programs, const Machine& machine,
                    const TimeSettings& settings = {});

}  // namespace shardfit::run
