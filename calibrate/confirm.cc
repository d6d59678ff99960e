#include "calibrate/confirm.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "run/run.h"

namespace shardfit::calibrate {
namespace {

double relative(std::int64_t measured, std::int64_t predicted) {
  if (predicted == 0) return measured == 0 ? 0 : HUGE_VAL;
  return static_cast<double>(measured - predicted) / static_cast<double>(predicted);
}

std::string off_words(const char* what, std::int64_t measured, std::int64_t predicted) {
  const std::int64_t by = measured - predicted;
  return std::string(what) + " off by " + (by >= 0 ? "+" : "") +
         format_percent(relative(measured, predicted)) + " (" + (by >= 0 ? "+" : "") +
         format_bytes(Bytes(by)) + ")";
}

void judge_rank(const ConfirmedRank& rank, ConfirmVerdict& verdict) {
  const std::string who = "rank " + std::to_string(rank.rank) + ": ";
  const auto off = [&](const std::string& words) {
    verdict.confirmed = false;
    verdict.because.push_back(who + words);
  };
  if (!rank.failure.empty()) return off(rank.failure);
  if (rank.step_seconds.empty()) off("no step was completed: " + rank.stopped);
  const Levels& m = rank.measured;
  const Levels& p = rank.predicted;
  if (std::fabs(relative(m.allocated, p.allocated)) > validate::allocated_tolerance) {
    off(off_words("allocated", m.allocated, p.allocated));
  }
  if (std::fabs(relative(m.reserved, p.reserved)) > validate::reserved_tolerance) {
    std::string words = off_words("reserved", m.reserved, p.reserved);
    if (rank.retries > 0) {
      words += ", because cached blocks had to be given back " + std::to_string(rank.retries) +
               " times: the plan's figure is that of a card without a limit";
    }
    off(words);
  }
  if (std::fabs(relative(m.device, p.device)) > validate::device_tolerance) {
    const std::int64_t outside = m.device - m.reserved, planned = p.device - p.reserved;
    off(off_words("device", m.device, p.device) + ", because context and libraries took " +
        format_bytes(Bytes(outside)) + " where the plan has " + format_bytes(Bytes(planned)));
  }
  if (rank.left > rank.libraries) off(format_bytes(Bytes(rank.left)) + " were not given back");
}

}  // namespace

const char* way_name(Way way) {
  return way == Way::caching ? "caching allocator" : "stream-ordered";
}

ConfirmVerdict judge(const Confirmation& confirmation) {
  ConfirmVerdict verdict;
  verdict.confirmed = !confirmation.ways.empty();
  for (const ConfirmedWay& way : confirmation.ways) {
    for (const ConfirmedRank& rank : way.ranks) {
      if (way.way == Way::caching) {
        judge_rank(rank, verdict);
      } else if (!rank.failure.empty()) {
        verdict.confirmed = false;
        verdict.because.push_back("rank " + std::to_string(rank.rank) +
                                  ", stream-ordered: " + rank.failure);
      }
    }
  }
  return verdict;
}

int steps_of(const Program& program) {
  int steps = 0;
  for (const PhaseMark& mark : program.phases) steps = std::max(steps, mark.step);
  return steps;
}

std::string phase_name(const PhaseMark& mark, int steps) {
  if (mark.live) return mark.name;
  if (mark.step == steps) return "steady_step." + mark.name;
  constexpr const char* names[] = {"first_step.", "second_step."};
  if (mark.step >= 1 && mark.step <= 2) return names[mark.step - 1] + mark.name;
  return "step_" + std::to_string(mark.step) + "." + mark.name;
}

std::string too_large(const PlannedOption& option, std::int64_t usable, std::int64_t taken) {
  if (taken >= usable) {
    return format_bytes(Bytes(usable)) + " of the device, less what is in use and the margin, is " +
           "nothing";
  }
  for (const PlannedGpu& gpu : option.gpus) {
    const Program& program = gpu.program.program;
    run::RunLimits limits;
    limits.total = usable;
    limits.context = taken;
    limits.settings = option.settings;
    const run::RunResult result = run::run_program(program, limits);
    if (!result.failure) continue;
    const StorageInfo& storage = program.storages[result.failure->storage];
    const std::string& layer = program.modules[storage.module];
    return "rank " + std::to_string(gpu.rank) + ", step " + std::to_string(result.failure->step) +
           ", " + result.failure->phase + ", at " + storage.kind +
           (layer.empty() ? "" : " " + layer) + ": " + result.failure->error.text();
  }
  return "";
}

}  // namespace shardfit::calibrate
