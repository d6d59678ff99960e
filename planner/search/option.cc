// One option: each distinct rank lowered, judged on its card, and all of them timed together.

#include <algorithm>

#include "base/format.h"
#include "model/blame.h"
#include "search/plan.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

/// Micro-batches of a step from which on the least capacity is searched without most of them.
constexpr std::int64_t many_passes = 16;

/// "first_step.", "second_step.", "steady_step." as measured cases call them.
std::string step_prefix(int step, int steps) {
  if (step == steps) return "steady_step.";
  constexpr const char* names[] = {"first_step.", "second_step."};
  return step <= 2 ? names[step - 1] : "step_" + std::to_string(step) + ".";
}

std::vector<Phase> phases_of(const Program& program, const run::RunResult& result, int steps) {
  std::vector<Phase> phases;
  std::vector<run::PhaseReading> readings;
  if (!result.loading.name.empty()) readings.push_back(result.loading);
  readings.insert(readings.end(), result.phases.begin(), result.phases.end());
  for (const run::PhaseReading& reading : readings) {
    Phase phase;
    phase.step = reading.step;
    phase.live = reading.live;
    if (reading.live && reading.step != 0 && reading.step != steps) continue;
    const bool in_step = !reading.live && reading.step > 0;
    phase.name = in_step ? step_prefix(reading.step, steps) + reading.name : reading.name;
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

/// More than any card can hold is a wrong number, and numbers of a part of a run say nothing.
[[noreturn]] void refuse(const spec::JobSpec& job, const spec::ModelSpec& model,
                         const Judgement& judgement) {
  Location where = job.model.where;
  std::vector<std::string> notes;
  if (const spec::Node* number = model::absurd_number(model)) {
    where = number->where;
  } else if (judgement.unlimited.failure->step > 0) {
    if (job.sequence.where.known()) where = job.sequence.where;
    if (job.micro_batch && job.micro_batch->where.known()) where = job.micro_batch->where;
    notes.push_back("loading runs: the micro-batch or the sequence is too large by far");
  }
  const std::string most = format_bytes(Bytes(judgement.needed));
  throw InputError(where,
                   "this job needs more than " + most +
                       " on one GPU, the most an allocator can count: a number must be wrong",
                   std::move(notes));
}

Gpu judge_gpu(const Option& option, const spec::ModelSpec& model, const Card& card,
              std::shared_ptr<const Program> lowered, const Program* in_short) {
  const Program& program = *lowered;
  Gpu gpu;
  gpu.program = lowered;
  gpu.card = card;
  gpu.judgement = judge(program, card, option.job.allocator, option.accuracy, Find::all, in_short);
  if (gpu.judgement.beyond_count) refuse(option.spec->job, model, gpu.judgement);
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

}  // namespace

bool Option::foreign() const {
  return job.profile.framework !=
         spec::framework_names()[static_cast<std::size_t>(spec->job.framework.value)];
}

namespace {

/// " The largest part of the peak on GPU 1: 59.8 GiB of optimizer_states."
std::string largest_term(const Gpu& gpu) {
  const auto& held = gpu.peak.allocated_by;
  const auto most = std::max_element(held.begin(), held.end());
  if (*most == 0) return "";
  return " The largest part of the peak on GPU " + std::to_string(gpu.index) + ": " +
         format_bytes(Bytes(*most)) + " of " +
         category_name(static_cast<Category>(most - held.begin())) + ".";
}

}  // namespace

Card card_for(const spec::OptionSpec& spec, spec::Parallel parallel) {
  const spec::DeviceSpec& device = spec.cluster.device;
  const bool exchanges =
      parallel != spec::Parallel::none && parallel != spec::Parallel::independent;
  return {device.usable->value.count(), context_of(device),
          exchange_of(exchanges ? spec.cluster.count : 1)};
}

Option make_option(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                   const program::Lowering& lowering) {
  Option option;
  option.spec = &spec;
  option.parallel = parallel;
  option.job = std::move(job);
  option.split = split_of(option.job.job, parallel, spec.cluster.count);
  option.shares = what_is_shared(parallel, option.split, spec.cluster.count);
  option.accuracy = accuracy_of(option.job.profile.framework,
                                spec::task_names()[static_cast<std::size_t>(spec.job.task.value)]);
  if (option.job.job.device.rocm) option.accuracy = rocm_accuracy(std::move(option.accuracy));
  const Card card = card_for(spec, parallel);
  program::TrainingJob alone = option.job.job;
  alone.record_computes = true;
  option.gpus.resize(static_cast<std::size_t>(spec.cluster.count));
  for (const RankGroup& group : rank_groups(alone, parallel, spec.cluster.count)) {
    const program::TrainingJob own = job_of_rank(alone, parallel, spec.cluster.count, group.rank);
    const auto program = std::make_shared<const Program>(lowering.lower(own));
    std::optional<Program> in_short;  // for the search of the least capacity
    if (own.accumulation > many_passes && !own.megatron) {
      program::TrainingJob shorter = own;
      shorter.record_computes = false;
      shorter.equal_passes = program::EqualPasses::leave;
      in_short = lowering.lower(shorter);
    }
    Gpu gpu = judge_gpu(option, lowering.model(), card, program, in_short ? &*in_short : nullptr);
    gpu.role = group.role;
    for (const int rank : group.ranks) {
      gpu.index = rank;
      gpu.rank = parallel == spec::Parallel::independent ? 0 : rank;
      option.gpus[static_cast<std::size_t>(rank)] = gpu;
    }
  }
  for (std::size_t i = 1; i < option.gpus.size(); ++i) {
    const Judgement& best = option.worst_gpu().judgement;
    const Judgement& other = option.gpus[i].judgement;
    if (other.verdict > best.verdict ||
        (other.verdict == best.verdict && other.headroom() < best.headroom())) {
      option.tightest = i;
    }
  }
  const Gpu& worst = option.worst_gpu();
  option.whole = option.job.job;
  option.job.job = job_of_rank(option.whole, parallel, spec.cluster.count, worst.rank);
  option.verdict = worst.judgement.verdict;
  option.reason = worst.judgement.reason;
  if (option.verdict == Verdict::does_not_fit) option.reason += largest_term(worst);
  std::string missing;
  option.timing = time_of(option, missing);
  if (!missing.empty()) option.warnings.push_back("no step time: " + missing);
  option.imbalances = find_imbalances(option, imbalance_threshold);
  return option;
}

}  // namespace shardfit::search
