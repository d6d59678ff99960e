#include "search/plan.h"

#include <algorithm>
#include <map>

#include "base/format.h"

namespace shardfit::search {
namespace {

using spec::OptionSpec;
using spec::Parallel;

/// Models and their lowerings, read once however many options name them.
class Lowerings {
 public:
  const program::Lowering& find(const OptionSpec& option) {
    const std::string path = spec::resolve_beside(option.job.model);
    const std::string framework =
        spec::framework_names()[static_cast<std::size_t>(option.job.framework.value)];
    auto& found = lowerings_[path + "\n" + framework];
    if (!found) {
      found = std::make_unique<program::Lowering>(spec::read_model(path, option.job.model.where),
                                                  framework);
    }
    return *found;
  }

 private:
  std::map<std::string, std::unique_ptr<program::Lowering>> lowerings_;
};

/// The strategy of an option; on one GPU everything is `none`.
std::optional<Parallel> strategy(const OptionSpec& option, std::vector<std::string>& warnings,
                                 Diagnostics& faults) {
  const Parallel asked = option.job.parallel.value;
  const bool several = option.cluster.count > 1;
  const std::string name = spec::parallel_names()[static_cast<std::size_t>(asked)];
  switch (asked) {
    case Parallel::independent:
      return asked;
    case Parallel::automatic:
      if (several) {
        warnings.push_back(
            "only independent runs, one a card, are modelled on several GPUs so far");
      }
      return several ? Parallel::independent : Parallel::none;
    case Parallel::none:
      if (several) {
        faults.error(option.job.parallel.where, "parallel none leaves all GPUs but one idle",
                     {"give --on " + option.cluster.device.name + ", or parallel independent"});
        return {};
      }
      return asked;
    default:
      faults.error(
          option.job.parallel.where.known() ? option.job.parallel.where : option.cluster.where,
          "parallel " + name + " is not modelled yet", {"expected none or independent"});
      return {};
  }
}

/// "first_step.", "second_step.", "steady_step." as measured cases call them.
std::string step_prefix(int step, int steps) {
  if (step == steps) return "steady_step.";
  constexpr const char* names[] = {"first_step.", "second_step."};
  return step <= 2 ? names[step - 1] : "step_" + std::to_string(step) + ".";
}

std::vector<Phase> phases_of(const Program& program, const run::RunResult& result, int steps) {
  std::vector<Phase> phases;
  for (const run::PhaseReading& reading : result.phases) {
    Phase phase;
    phase.step = reading.step;
    phase.live = reading.live;
    if (reading.live && reading.step != 0 && reading.step != steps) continue;
    phase.name = reading.live ? reading.name : step_prefix(reading.step, steps) + reading.name;
    phase.allocated = reading.allocated;
    phase.reserved = reading.reserved;
    phase.instruction = reading.live ? -1 : reading.peak_instruction;
    if (phase.instruction >= 0) {
      const StorageInfo& storage = program.storages[reading.peak_storage];
      phase.cause = {storage.kind, program.modules[storage.module], storage.category};
    }
    const auto same = std::find_if(phases.begin(), phases.end(),
                                   [&](const Phase& p) { return p.name == phase.name; });
    if (same == phases.end()) {
      phases.push_back(std::move(phase));
    } else if (phase.allocated > same->allocated) {  // the next micro-batch of the step
      phase.reserved = std::max(phase.reserved, same->reserved);
      *same = std::move(phase);
    } else {
      same->reserved = std::max(phase.reserved, same->reserved);
    }
  }
  return phases;
}

/// The instruction that marks the end of a phase.
std::int64_t end_of(const Program& program, const Phase& phase) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.action != Action::phase) continue;
    const PhaseMark& mark = program.phases[instruction.id];
    if (mark.step == phase.step && mark.live == phase.live) return static_cast<std::int64_t>(i);
  }
  return static_cast<std::int64_t>(program.instructions.size()) - 1;
}

Gpu judge_gpu(const Option& option, const Card& card) {
  const Program& program = *option.program;
  Gpu gpu;
  gpu.card = card;
  gpu.judgement = judge(program, card, option.job.allocator, option.accuracy);
  gpu.phases = phases_of(program, gpu.judgement.unlimited, option.job.job.steps);
  for (std::size_t i = 1; i < gpu.phases.size(); ++i) {
    const Phase& best = gpu.phases[gpu.worst];
    const bool steady = gpu.phases[i].name.starts_with("steady_step.") && best.step > 1 &&
                        best.step < gpu.phases[i].step;
    if (gpu.phases[i].allocated > best.allocated ||
        (steady && gpu.phases[i].allocated == best.allocated)) {
      gpu.worst = i;
    }
  }
  run::RunLimits limits;
  limits.settings = option.job.allocator;
  const Phase& worst = gpu.phases[gpu.worst];
  const std::int64_t at = worst.instruction >= 0 ? worst.instruction : end_of(program, worst);
  gpu.peak = live_after(program, limits, at);
  return gpu;
}

Option make_option(const OptionSpec& spec, Parallel parallel, RankJob job,
                   const program::Lowering& lowering, const PlanSettings& settings) {
  Option option;
  option.spec = &spec;
  option.parallel = parallel;
  option.job = std::move(job);
  option.program = std::make_shared<const Program>(lowering.lower(option.job.job));
  option.accuracy = accuracy_of(option.job.profile.framework,
                                spec::task_names()[static_cast<std::size_t>(spec.job.task.value)]);
  const spec::DeviceSpec& device = spec.cluster.device;
  const Card card{device.usable->value.count(), context_of(device.compute_capability)};
  const Gpu first = judge_gpu(option, card);
  for (int i = 0; i < static_cast<int>(spec.cluster.count); ++i) {
    option.gpus.push_back(first);
    option.gpus.back().index = i;
    option.gpus.back().rank = parallel == Parallel::independent ? 0 : i;
    option.gpus.back().role = parallel == Parallel::independent ? "a run of its own" : "the job";
  }
  option.verdict = first.judgement.verdict;
  option.reason = first.judgement.reason;
  if (settings.changes && option.verdict != Verdict::fits) {
    option.changes = find_changes(option, lowering);
  }
  if (settings.effects) {
    option.assumptions = find_effects(option, lowering);
  } else {
    for (const auto& assumption : option.job.assumptions) {
      option.assumptions.push_back({assumption, 0, 0});
    }
  }
  return option;
}

/// The first option of the best verdict; why.
void recommend(Plan& plan) {
  for (std::size_t i = 0; i < plan.options.size(); ++i) {
    const Option& option = plan.options[i];
    if (option.verdict == Verdict::does_not_fit) continue;
    if (!plan.recommended || option.verdict < plan.options[*plan.recommended].verdict) {
      plan.recommended = i;
    }
  }
  if (!plan.recommended) {
    plan.because = "no option fits";
    return;
  }
  const Option& option = plan.options[*plan.recommended];
  plan.because = std::string(option.verdict == Verdict::fits ? "it fits: " : "it runs, tightly: ") +
                 option.reason;
  if (plan.options.size() > 1) {
    plan.because +=
        "; the first of the options with this verdict (time and rent are not weighed yet)";
  }
}

}  // namespace

Plan make_plan(const spec::PlanSpec& spec, const PlanSettings& settings) {
  Diagnostics faults;
  Lowerings lowerings;
  struct Ready {
    const OptionSpec* option;
    Parallel parallel;
    RankJob job;
    std::vector<std::string> warnings;
  };
  std::vector<Ready> ready;
  for (const OptionSpec& option : spec.options) {
    Ready next{&option, Parallel::none, {}, {}};
    const auto parallel = strategy(option, next.warnings, faults);
    const std::string framework =
        spec::framework_names()[static_cast<std::size_t>(option.job.framework.value)];
    const std::vector<std::string> known = modelled_frameworks();
    if (std::find(known.begin(), known.end(), framework) == known.end()) {
      faults.error(option.job.framework.where, "framework " + framework + " is not modelled yet",
                   {"expected one of: " + join(known)});
      continue;
    }
    const auto ranks = spec::data_parallel_ranks(option.job, parallel.value_or(Parallel::none),
                                                 option.cluster.count, faults);
    auto job = rank_job(option, ranks.value_or(1), lowerings.find(option).model(), faults);
    if (!parallel || !ranks || !job) continue;
    next.parallel = *parallel;
    next.job = *std::move(job);
    ready.push_back(std::move(next));
  }
  faults.throw_if_any();
  Plan plan;
  for (Ready& next : ready) {
    const program::Lowering& lowering = lowerings.find(*next.option);
    try {
      plan.options.push_back(
          make_option(*next.option, next.parallel, std::move(next.job), lowering, settings));
    } catch (const OverflowError&) {
      throw InputError(next.option->job.model.where,
                       "this model and batch need more than 8 EiB: a number must be wrong");
    }
    Option& option = plan.options.back();
    option.warnings = std::move(next.warnings);
    option.warnings.insert(option.warnings.end(), option.job.warnings.begin(),
                           option.job.warnings.end());
    if (!option.accuracy.measured) {
      option.warnings.push_back(
          "no measured cases of this framework and task: the interval is the widest of all others");
    }
  }
  if (!plan.options.empty()) plan.parameters = plan.options.front().program->parameters_total;
  recommend(plan);
  return plan;
}

}  // namespace shardfit::search
