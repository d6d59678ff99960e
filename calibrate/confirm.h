#pragma once
// What a plan predicted beside what the devices said when its programs were replayed on them.

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/plan_file.h"
#include "calibrate/reading.h"

namespace shardfit::calibrate {

struct ConfirmOptions {
  std::int64_t margin = 0;     // bytes of a device that are never taken
  double budget_seconds = 60;  // of the replay, over both ways to allocate
};

/// How storages get their memory.
enum class Way {
  caching,        // through the planner's caching allocator, its segments by cudaMalloc
  stream_ordered  // each by cudaMallocAsync
};
const char* way_name(Way way);

struct Levels {
  std::int64_t allocated = 0, reserved = 0, device = 0;
};

struct ConfirmedPhase {
  std::string name;
  std::int64_t predicted_allocated = 0, predicted_reserved = 0;  // -1: the plan has no such phase
  Levels measured;
};

/// One rank on one device.
struct ConfirmedRank {
  int rank = 0, device = 0;
  Levels predicted, measured;       // peaks after loading
  std::int64_t before = 0;          // device bytes in use when the replay began: context, libraries
  std::int64_t process_bytes = -1;  // most of this process by NVML; -1 where it does not tell
  std::vector<ConfirmedPhase> phases;
  std::int64_t retries = 0;  // requests for which cached blocks had to be given back
  std::int64_t products = 0, attentions = 0, others = 0;  // operators launched
  std::int64_t without_room =
      0;  // of the products, those for which no live storage was large enough
  std::vector<double> step_seconds;
  double exchange_seconds = 0;  // of the last step, all collectives added up
  std::int64_t exchanges = 0;
  std::string stopped;         // the budget was used up, and where; "" where it ran to its end
  std::string failure;         // what went wrong, and where; "" where nothing did
  std::int64_t left = 0;       // device bytes still in use after the release; -1: it does not say
  std::int64_t libraries = 0;  // of them, what libraries may keep that were loaded meanwhile
};

struct ConfirmedWay {
  Way way = Way::caching;
  std::vector<ConfirmedRank> ranks;
};

struct Confirmation {
  Machine machine;
  std::string option;
  std::optional<double> planned_step_seconds, planned_exchange_seconds;
  std::vector<ConfirmedWay> ways;
};

struct ConfirmVerdict {
  bool confirmed = false;
  std::vector<std::string> because;  // what is off, and by how much; what it comes from
};
ConfirmVerdict judge(const Confirmation& confirmation);

std::string confirmation_text(const Confirmation& confirmation);
std::string confirmation_json(const Confirmation& confirmation);

/// "first_step.forward", "steady_step.backward", "loaded": as a plan calls the phase of a mark.
std::string phase_name(const PhaseMark& mark, int steps);
int steps_of(const Program& program);

/// What keeps the option from being replayed with `budget` bytes a device: the allocator's own
/// error with its phase and operator; "" where every program runs.
std::string too_large(const PlannedOption& option, std::int64_t usable, std::int64_t taken);

/// Replays on the devices; never throws for what goes wrong there.
Confirmation run_confirm(const Machine& machine, const PlannedOption& option,
                         const ConfirmOptions& options);

}  // namespace shardfit::calibrate
