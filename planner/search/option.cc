// One option: each distinct rank lowered, judged on its card, and all of them timed together.

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "model/blame.h"
#include "search/long_steps.h"
#include "search/plan.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

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
              std::shared_ptr<const Program> lowered) {
  const Program& program = *lowered;
  Gpu gpu;
  gpu.program = lowered;
  gpu.card = card;
  gpu.judgement = judge(program, card, option.job.allocator, option.accuracy, Find::verdict,
                        option.job.job.stop);
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
  return gpu;
}

/// The least capacity, and what is alive at the highest moment.
void measure_gpu(const Option& option, Gpu& gpu) {
  find_needed(gpu.judgement, *gpu.program, gpu.card, option.job.allocator, option.job.job.stop);
  const Phase& worst = gpu.phases[gpu.worst];
  const std::int64_t at = worst.instruction >= 0 ? worst.instruction : end_of(*gpu.program, worst);
  gpu.peak = live_after(*gpu.program, gpu.judgement.unlimited, at);
}

/// Programs that differ in nothing that memory depends on, or what is said of it.
bool same_memory(const Program& a, const Program& b) {
  const auto instruction = [](const Instruction& x, const Instruction& y) {
    return x.action == y.action && x.stream == y.stream && x.id == y.id;
  };
  const auto storage = [](const StorageInfo& x, const StorageInfo& y) {
    return x.bytes == y.bytes && x.category == y.category && x.module == y.module &&
           x.backward == y.backward && std::strcmp(x.kind, y.kind) == 0;
  };
  const auto phase = [](const PhaseMark& x, const PhaseMark& y) {
    return x.name == y.name && x.step == y.step && x.live == y.live;
  };
  const auto same = [](const auto& x, const auto& y, const auto& equal) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), equal);
  };
  return same(a.instructions, b.instructions, instruction) &&
         same(a.storages, b.storages, storage) && same(a.phases, b.phases, phase) &&
         a.modules == b.modules;
}

/// One of the GPUs before `end` whose program is the same for memory; `end` where none is.
std::size_t same_before(const std::vector<Gpu>& gpus, std::size_t end) {
  for (std::size_t i = 0; i < end; ++i) {
    if (gpus[i].card.outside() != gpus[end].card.outside()) continue;
    const bool one = gpus[i].program == gpus[end].program;
    if (one || same_memory(*gpus[i].program, *gpus[end].program)) return i;
  }
  return end;
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

Card card_for(const spec::OptionSpec& spec, spec::Parallel parallel, int index) {
  const spec::DeviceSpec& device = spec.cluster.device;
  const bool exchanges =
      parallel != spec::Parallel::none && parallel != spec::Parallel::independent;
  Card card{device.usable->value.count(),
            context_of(device),
            exchange_of(device, exchanges ? spec.cluster.count : 1),
            {}};
  const bool strays = spec.job.stray_contexts && spec.job.stray_contexts->value;
  if (strays && exchanges && index == 0) {
    const std::int64_t others = std::min(spec.cluster.count, most_in_a_machine) - 1;
    card.stray = {others * card.context.low, others * card.context.high, card.context.source};
  }
  return card;
}

namespace {

/// The GPU that decides, and what is said of the option because of it.
void take_worst(Option& option) {
  option.tightest = 0;
  for (std::size_t i = 1; i < option.gpus.size(); ++i) {
    if (decides_over(option.gpus[i].judgement, option.worst_gpu().judgement)) option.tightest = i;
  }
  const Gpu& worst = option.worst_gpu();
  option.job.job =
      job_of_rank(option.whole, option.parallel, option.spec->cluster.count, worst.rank);
  option.verdict = worst.judgement.verdict;
  option.reason = worst.judgement.reason;
}

/// Every rank's program, lowered once a group of equal ranks, and judged once where programs of
/// several groups are the same for memory. `until_one_fails`: false, and no more is lowered, once
/// one does not fit; the ends of a pipeline, which are likely the fullest, come first.
bool judge_ranks(Option& option, const program::Lowering& lowering, bool until_one_fails) {
  const std::int64_t count = option.spec->cluster.count;
  program::TrainingJob alone = option.whole;
  alone.record_computes = true;
  option.gpus.resize(static_cast<std::size_t>(count));
  const Card first_card = card_for(*option.spec, option.parallel, 0);
  const Card card_of_others = card_for(*option.spec, option.parallel, 1);
  std::vector<Gpu> judged;
  bool fits = true;
  const auto take = [&](const LoweredGroup& lowered) {
    const std::shared_ptr<const Program>& program = lowered.program;
    for (const int rank : lowered.group.ranks) {
      const Card& card = rank == 0 ? first_card : card_of_others;
      const auto same = std::find_if(judged.begin(), judged.end(), [&](const Gpu& gpu) {
        const bool one = gpu.program == program || same_memory(*gpu.program, *program);
        return one && gpu.card.outside() == card.outside();
      });
      const bool known = same != judged.end();
      Gpu gpu = known ? *same : judge_gpu(option, lowering.model(), card, program);
      if (!known) judged.push_back(gpu);
      gpu.program = program;
      gpu.role = lowered.group.role;
      gpu.index = rank;
      gpu.rank = option.parallel == spec::Parallel::independent ? 0 : rank;
      fits = fits && gpu.judgement.verdict == Verdict::fits;
      option.gpus[static_cast<std::size_t>(rank)] = std::move(gpu);
      if (until_one_fails && !fits) return false;
    }
    return true;
  };
  std::vector<RankGroup> groups = rank_groups(alone, option.parallel, count);
  if (until_one_fails && groups.size() > 2) {
    std::rotate(groups.begin() + 1, groups.end() - 1, groups.end());
  }
  lower_groups(
      lowering, std::move(groups),
      [&](int rank) { return job_of_rank(alone, option.parallel, count, rank); }, take);
  return fits || !until_one_fails;
}

/// The option; with `only_fits` nothing where it does not fit.
std::optional<Option> tried(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                            const program::Lowering& lowering, bool only_fits) {
  Option option;
  option.spec = &spec;
  option.parallel = parallel;
  option.job = std::move(job);
  option.split = split_of(option.job.job, parallel, spec.cluster.count);
  option.shares = what_is_shared(option.job.job, parallel, option.split, spec.cluster.count);
  option.accuracy = accuracy_of(option.job.profile.framework,
                                spec::task_names()[static_cast<std::size_t>(spec.job.task.value)]);
  if (option.job.job.device.rocm) option.accuracy = rocm_accuracy(std::move(option.accuracy));
  const program::TrainingJob whole = option.whole = option.job.job;
  const std::int64_t all = option.whole.accumulation;
  const PassesRun run = passes_run(option.whole);
  option.whole = few_of(std::move(option.whole));
  if (!judge_ranks(option, lowering, only_fits)) return {};
  take_worst(option);
  std::string missing = machine_for(option).missing;
  if (!missing.empty()) {
    option.warnings.push_back("no step time: " + missing);
  } else if (run.some == all) {
    option.timing = time_of(option, missing);
  } else {
    option.timing = step_timing(spec, parallel, whole, lowering);
  }
  if (run.some < all) {
    option.job.assumptions.push_back({"passes", format_count(run.some),
                                      "of the " + format_count(all) +
                                          " micro-batches of a step so many are run: the others "
                                          "are taken to be like the last"});
  }
  return option;
}

}  // namespace

Option try_option(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                  const program::Lowering& lowering) {
  return *tried(spec, parallel, std::move(job), lowering, false);
}

std::optional<Option> try_to_fit(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                                 const program::Lowering& lowering) {
  return tried(spec, parallel, std::move(job), lowering, true);
}

void measure(Option& option) {
  if (option.gpus.front().judgement.needed > 0) return;  // it was
  for (std::size_t i = 0; i < option.gpus.size(); ++i) {
    Gpu& gpu = option.gpus[i];
    if (const std::size_t same = same_before(option.gpus, i); same < i) {
      gpu.judgement = option.gpus[same].judgement;
      gpu.peak = option.gpus[same].peak;
    } else {
      measure_gpu(option, gpu);
    }
  }
  take_worst(option);
  if (option.verdict == Verdict::does_not_fit) option.reason += largest_term(option.worst_gpu());
  option.imbalances = find_imbalances(option, option.spec->imbalance);
}

Option make_option(const spec::OptionSpec& spec, spec::Parallel parallel, RankJob job,
                   const program::Lowering& lowering) {
  Option option = try_option(spec, parallel, std::move(job), lowering);
  measure(option);
  return option;
}

}  // namespace shardfit::search
