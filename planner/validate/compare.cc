#include "validate/compare.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "base/parallel.h"
#include "run/run.h"
#include "run/time_clock.h"
#include "spec/data_directory.h"

namespace shardfit::validate {
namespace {

/// The peak over all steps; what came before them is not part of it.
std::int64_t overall_peak(const run::RunResult& result, bool reserved) {
  std::int64_t peak = 0;
  for (const run::PhaseReading& phase : result.phases) {
    if (phase.live || phase.step == 0) continue;
    peak = std::max(peak, reserved ? phase.reserved : phase.allocated);
  }
  return peak;
}

/// Marks of a program that resets its peaks only at the start of a step: "forward" ends with the
/// first micro-batch's, "backward" holds all before it too.
bool peak_from_start(const run::RunResult& result, const std::string& name, int step, bool reserved,
                     std::int64_t& value) {
  bool found = false;
  value = 0;
  for (const run::PhaseReading& phase : result.phases) {
    if (phase.step != step || (phase.name != "forward" && phase.name != "backward")) continue;
    value = std::max(value, reserved ? phase.reserved : phase.allocated);
    found = true;
    if (name == "forward") break;
  }
  return found;
}

/// Where a run's value for a reading is; false where the program has no such phase.
bool predicted_value(const run::RunResult& result, const Case& c, const Reading& reading,
                     std::int64_t& value) {
  const bool reserved = reading.counter == "reserved_bytes";
  if (reading.phase.empty()) {
    value = overall_peak(result, reserved);
    return true;
  }
  std::string name = reading.phase;
  int step = 0;
  const auto prefixed = [&](const char* prefix, int number) {
    const std::string p = std::string(prefix) + ".";
    if (reading.phase.rfind(p, 0) != 0) return;
    name = reading.phase.substr(p.size());
    step = number;
  };
  prefixed("first_step", 1);
  prefixed("second_step", 2);
  prefixed("steady_step", c.job.steps);
  if (name == "between_steps" || name == "after_step_with_gradients") step = c.job.steps;
  if (c.peaks_from_start && (name == "forward" || name == "backward")) {
    return peak_from_start(result, name, step, reserved, value);
  }
  bool found = false;
  value = 0;
  for (const run::PhaseReading& phase : result.phases) {
    if (phase.name != name || phase.step != step) continue;
    const std::int64_t here = reserved ? phase.reserved : phase.allocated;
    value = phase.live ? here : std::max(value, here);
    found = true;
  }
  return found;
}

void check_outcome(const run::RunResult& result, const Case& c, CaseResult& out) {
  if (!result.failure) {
    out.predicted_outcome = "fits";
    out.outcome_right = !c.ends_out_of_memory;
    return;
  }
  const auto& failure = *result.failure;
  const std::string phase = "step " + std::to_string(failure.step) + " " + failure.phase;
  out.predicted_outcome = phase + ": tried " + run::size_text(failure.error.tried);
  out.outcome_right = c.ends_out_of_memory && phase == c.failing_phase &&
                      c.failing_message.find("allocate " + run::size_text(failure.error.tried)) !=
                          std::string::npos;
}

/// The job as it can have run: a model larger than the card was built without memory and got some
/// when it had been sharded.
program::TrainingJob runnable_job(const Case& c, const program::Lowering& lowering) {
  program::TrainingJob job = c.job;
  if (!job.fsdp2 || c.memory_bytes == 0) return job;
  const std::int64_t bytes = lowering.parameter_count() * element_size(job.parameters);
  if (bytes > c.memory_bytes) job.fsdp2->built_on_meta = true;
  return job;
}

/// The step's seconds on the case's device; nothing where no number for it is sourced.
std::optional<double> predicted_seconds(const Program& program, const Case& c) {
  Diagnostics faults;
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  const spec::DeviceSpec* device = devices.find(c.device, faults);
  faults.throw_if_any();
  if (!device) return {};
  spec::ClusterSpec cluster;
  cluster.device = *device;
  cluster.count = c.count;
  const run::Machine machine = run::machine_of(cluster);
  if (!machine.missing.empty()) return {};
  const run::RankProgram ranks{&program, {}};
  return run::run_time({&ranks, 1}, machine).step_seconds;
}

bool has_seconds(const Case& c) {
  return std::any_of(c.readings.begin(), c.readings.end(),
                     [](const Reading& r) { return r.counter == "step_seconds"; });
}

CaseResult predict_one(const Case& c, const program::Lowering& lowering) {
  CaseResult out;
  out.id = c.id;
  out.group = c.group;
  out.family = lowering.model().model_type;
  out.ends_out_of_memory = c.ends_out_of_memory;
  program::TrainingJob job = runnable_job(c, lowering);
  job.record_computes = has_seconds(c);
  const Program program = lowering.lower(job);
  run::RunLimits limits;
  if (c.memory_bytes > 0) limits.total = c.memory_bytes;
  if (!c.allocator.empty()) limits.settings = run::parse_allocator_settings(c.allocator);
  const run::RunResult result = run_program(program, limits);
  check_outcome(result, c, out);
  for (const Reading& reading : c.readings) {
    if (reading.counter == "step_seconds") {
      const auto seconds = predicted_seconds(program, c);
      if (!seconds) continue;
      out.rows.push_back({c.id, c.group, out.family, reading.counter, reading.phase, 0, 0,
                          reading.seconds, *seconds});
      continue;
    }
    std::int64_t value = 0;
    if (!predicted_value(result, c, reading, value)) continue;
    out.rows.push_back(
        {c.id, c.group, out.family, reading.counter, reading.phase, reading.measured, value, 0, 0});
  }
  return out;
}

/// Cases of one model, with the same numbers changed, under one framework: lowered by one Lowering.
std::string lowering_key(const Case& c) {
  std::string key = c.job.framework + "|" + c.model_path;
  for (const spec::Node& o : c.overrides.children) key += "|" + o.key + "=" + o.text;
  return key;
}

program::Lowering lowering_of(const Case& c) {
  return program::Lowering(model_of(c), c.job.framework);
}

}  // namespace

std::vector<CaseResult> predict(const std::vector<Case>& cases) {
  struct Lowered {
    std::mutex making;
    std::unique_ptr<program::Lowering> lowering;
  };
  std::map<std::string, Lowered> lowerings;
  for (const Case& c : cases) {
    if (c.skipped.empty()) lowerings[lowering_key(c)];
  }
  std::vector<CaseResult> results(cases.size());
  in_parallel(cases.size(), [&](std::size_t i) {
    const Case& c = cases[i];
    CaseResult skipped;
    skipped.id = c.id;
    skipped.group = c.group;
    skipped.skipped = c.skipped;
    if (c.skipped.empty()) {
      try {
        Lowered& lowered = lowerings.at(lowering_key(c));
        {
          const std::lock_guard lock(lowered.making);
          if (!lowered.lowering) {
            lowered.lowering = std::make_unique<program::Lowering>(lowering_of(c));
          }
        }
        results[i] = predict_one(c, *lowered.lowering);
        return;
      } catch (const InputError& error) {
        skipped.skipped =
            error.diagnostics().empty() ? error.what() : error.diagnostics().front().message;
      }
    }
    results[i] = std::move(skipped);
  });
  return results;
}

}  // namespace shardfit::validate
