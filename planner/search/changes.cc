// What else the job could be: changes that would make it fit, and the weight of what was assumed.
// Each is lowered and run anew.

#include <algorithm>
#include <functional>

#include "base/format.h"
#include "program/titan_units.h"
#include "run/machine.h"
#include "run/memory_clock.h"
#include "search/largest.h"
#include "search/plan.h"
#include "search/sharing.h"
#include "search/titan.h"

namespace shardfit::search {
namespace {

using program::Lowering;
using program::TrainingJob;

/// A job, and the allocator's settings it runs under.
struct Variant {
  TrainingJob job;
  run::AllocatorSettings allocator;
};

struct Step {
  std::string words;
  std::function<void(Variant&)> apply;
  bool same_program = false;  // only the allocator's mode changes
};

std::int64_t half(std::int64_t n) { return n / 2; }

/// Single changes that apply to the job, those that cost least first: nothing but an allocator's
/// mode, then the kernel of the optimizer's step, then time for recomputation, then smaller passes.
std::vector<Step> single_steps(const Option& option) {
  const RankJob& rank = option.job;
  std::vector<Step> steps;
  if (!rank.allocator.expandable_segments) {
    steps.push_back({"allocator expandable_segments:True",
                     [](Variant& v) { v.allocator.expandable_segments = true; }, true});
  }
  if (rank.job.optimizer == "adamw" && rank.job.implementation != program::Implementation::fused) {
    steps.push_back({"optimizer adamw-fused",
                     [](Variant& v) { v.job.implementation = program::Implementation::fused; }});
  }
  for (std::int64_t micro = half(rank.batch.micro); micro >= 1; micro = half(micro)) {
    if (rank.batch.micro % micro != 0) continue;
    const std::int64_t passes = rank.batch.accumulation * (rank.batch.micro / micro);
    if (passes > program::most_passes) break;
    steps.push_back(
        {"micro-batch " + std::to_string(micro) + ", accumulation " + std::to_string(passes),
         [micro, passes](Variant& v) {
           v.job.micro_batch = micro;
           v.job.accumulation = passes;
         }});
  }
  if (rank.job.recompute != program::Recompute::full) {
    steps.push_back(
        {"recompute full", [](Variant& v) { v.job.recompute = program::Recompute::full; }});
  }
  return steps;
}

/// For peaks alone: passes like the one before are left out.
TrainingJob in_short(TrainingJob job) {
  job.equal_passes = program::EqualPasses::leave;
  return job;
}

/// Passes up to which a program in short is the program.
constexpr std::int64_t few_passes = 8;

/// The program of a change, where it is not the option's own.
std::shared_ptr<const Program> changed_program(const Lowering& lowering, TrainingJob job,
                                               bool same_program) {
  if (same_program && job.accumulation <= few_passes) return nullptr;
  return std::make_shared<const Program>(lowering.lower(in_short(std::move(job))));
}

/// `own` is what changed_program gave.
Change judge_change(const Option& option, std::string words, const Variant& variant,
                    const std::shared_ptr<const Program>& own, Find find = Find::all) {
  const Judgement judgement =
      judge(own ? *own : *option.worst_gpu().program, option.worst_gpu().card, variant.allocator,
            option.accuracy, find, nullptr, variant.job.stop);
  return {std::move(words), judgement.verdict, judgement.needed, judgement.headroom(), {}};
}

/// The job of one rank as that of another.
TrainingJob at_rank(TrainingJob job, int rank) {
  if (job.ddp) job.ddp->rank = rank;
  if (job.fsdp1) job.fsdp1->rank = rank;
  if (job.fsdp2) job.fsdp2->rank = rank;
  if (job.zero_redundancy) job.zero_redundancy->rank = rank;
  if (job.deepspeed) job.deepspeed->rank = rank;
  if (job.megatron) job.megatron->rank = rank;
  if (job.titan && job.titan->data * job.titan->tensor > 1) {
    job.titan->rank = rank;
    if (job.fsdp2) {
      job.fsdp2->rank = job.titan->data_rank();
      program::set_titan_mesh(*job.fsdp2, *job.titan);
    }
  }
  return job;
}

/// A step of all ranks under a change. `known`, where given, is the program of every rank.
std::optional<double> step_of(const Option& option, const Lowering& lowering,
                              const Variant& variant, const std::shared_ptr<const Program>& known) {
  Option changed;
  changed.spec = option.spec;
  changed.parallel = option.parallel;
  const std::int64_t gpus = option.spec->cluster.count;
  TrainingJob job = variant.job;
  job.record_computes = true;
  const std::vector<RankGroup> groups = rank_groups(at_rank(job, 0), option.parallel, gpus);
  const auto job_of = [&](int rank) { return at_rank(job, rank); };
  const std::vector<LoweredGroup> lowered = known
                                                ? std::vector<LoweredGroup>{{groups.front(), known}}
                                                : lower_groups(lowering, groups, job_of);
  for (const auto& [group, program] : lowered) {
    Gpu gpu;
    gpu.program = program;
    for (const int rank : group.ranks) {
      gpu.index = rank;
      gpu.rank = option.parallel == spec::Parallel::independent ? 0 : rank;
      changed.gpus.push_back(gpu);
    }
  }
  std::string missing;
  const auto timing = time_of(changed, missing);
  if (!timing) return {};
  return timing->step_seconds;
}

/// The same with its step where it runs.
Change simulate_change(const Option& option, const Lowering& lowering, std::string words,
                       const Variant& variant, bool same_program = false) {
  TrainingJob job = variant.job;
  // One card's program gives its step, too, where it is whole.
  const bool whole = option.gpus.size() == 1 && job.accumulation <= few_passes;
  job.record_computes = whole;
  const auto own = changed_program(lowering, std::move(job), same_program);
  Change change = judge_change(option, std::move(words), variant, own);
  if (change.verdict != Verdict::does_not_fit) {
    change.step_seconds = step_of(option, lowering, variant, whole ? own : nullptr);
  }
  return change;
}

/// The peak of a job's live bytes; nothing where no card can hold it.
std::optional<std::int64_t> peak_of(const Lowering& lowering, TrainingJob job,
                                    const run::AllocatorSettings& allocator) {
  job.record_computes = false;
  const Program program = lowering.lower(in_short(std::move(job)));
  if (!countable(program)) return {};
  return run::rounded_peak(program, allocator);
}

/// What stays on the card whatever the passes are like, bytes: the change that leaves least of
/// everything else still needs so much.
std::int64_t kept_between_steps(const Option& option) {
  std::int64_t kept = 0;
  for (const run::PhaseReading& phase : option.worst_gpu().judgement.unlimited.phases) {
    if (!phase.live || phase.step != option.job.job.steps) continue;
    for (const Category c : {Category::parameter, Category::optimizer_state}) {
      kept += phase.categories[static_cast<std::size_t>(c)];
    }
  }
  return kept;
}

/// Whether another choice for an assumed word is the one that was made.
bool same_choice(const TrainingJob& a, const TrainingJob& b) {
  return a.parameters == b.parameters && a.autocast == b.autocast &&
         a.grad_scaler == b.grad_scaler && a.optimizer == b.optimizer &&
         a.implementation == b.implementation && a.recompute == b.recompute &&
         a.attention == b.attention && a.micro_batch == b.micro_batch &&
         a.accumulation == b.accumulation && a.sequence == b.sequence &&
         a.clip_foreach == b.clip_foreach && a.device.multiprocessors == b.device.multiprocessors;
}

/// The other words for an assumed key, as jobs; empty where there is nothing else to choose.
std::vector<TrainingJob> other_choices(const Option& option, const std::string& key) {
  const TrainingJob& job = option.job.job;
  std::vector<TrainingJob> others;
  const auto with = [&](const std::function<void(TrainingJob&)>& apply) {
    TrainingJob other = job;
    apply(other);
    if (!same_choice(job, other)) others.push_back(std::move(other));
  };
  if (key == "precision") {
    for (std::size_t p = 0; p < spec::precision_names().size(); ++p) {
      const auto precision = static_cast<spec::Precision>(p);
      if (job.titan) {
        if (precision == spec::Precision::fp16_mixed) continue;  // it has none
        with([&](TrainingJob& j) { set_titan_precision(precision, j); });
        continue;
      }
      with([&](TrainingJob& j) { set_precision(precision, j); });
    }
  } else if (key == "optimizer") {
    for (const auto o : {spec::Optimizer::adamw_fused, spec::Optimizer::adamw_foreach,
                         spec::Optimizer::adamw_loop, spec::Optimizer::sgd}) {
      if (job.titan && o == spec::Optimizer::sgd) continue;  // Adam and AdamW only
      with([&](TrainingJob& j) { set_optimizer(o, j); });
    }
  } else if (key == "recompute") {
    with([](TrainingJob& j) { j.recompute = program::Recompute::full; });
  } else if (key == "attention" && !job.titan) {
    with([](TrainingJob& j) { j.attention = "eager"; });
  } else if (key == "micro-batch") {
    with([](TrainingJob& j) { j.micro_batch *= 2; });
  } else if (key == "accumulation") {
    with([](TrainingJob& j) { j.accumulation *= 2; });
  } else if (key == "sequence") {
    with([](TrainingJob& j) { j.sequence = std::max<std::int64_t>(1, j.sequence / 2); });
    const auto longest = option.lowering->longest_sequence();
    if (!longest || 2 * job.sequence <= *longest) {
      with([](TrainingJob& j) { j.sequence *= 2; });
    }
  } else if (key == "clipping" && !job.titan) {  // its Trainer always clips
    with([](TrainingJob& j) {
      j.clip_foreach = j.clip_foreach ? std::optional<bool>() : std::optional<bool>(true);
    });
  } else if (key == "multiprocessors") {
    for (const int count : {40, 188}) {
      with([&](TrainingJob& j) { j.device.multiprocessors = count; });
    }
  }
  return others;
}

/// Where all that costs only time has been tried, other numbers are left: alone, then beside `all`
/// changes, which are called `words`.
void add_other_precision(const Option& option, const Lowering& lowering, Variant all,
                         std::vector<std::string> words, std::vector<Change>& changes) {
  const TrainingJob& job = option.job.job;
  const bool own = !job.fsdp2 && !job.fsdp1 && !job.deepspeed && !job.megatron && !job.titan;
  if (!own || job.parameters != DType::f32 || job.autocast != DType::bf16) return;
  const bool one_fits = std::any_of(changes.begin(), changes.end(), [](const Change& change) {
    return change.verdict == Verdict::fits;
  });
  if (!option.search && one_fits) return;
  Variant variant{job, option.job.allocator};
  set_precision(spec::Precision::bf16, variant.job);
  changes.push_back(simulate_change(option, lowering,
                                    "precision bf16, parameters and states in 16 bits", variant));
  if (option.search || changes.back().verdict == Verdict::fits || words.empty()) return;
  set_precision(spec::Precision::bf16, all.job);
  words.emplace_back("precision bf16");
  changes.push_back(simulate_change(option, lowering, join(words, ", "), all));
}

void add_changes(const Option& option, const Lowering& lowering, std::vector<Change>& changes) {
  const std::vector<Step> steps = single_steps(option);
  bool one_fits = false;
  Variant all{option.job.job, option.job.allocator};
  std::vector<std::string> words;
  bool small_enough = false;  // a smaller micro-batch than one that fits is no news
  // Parameters and states alone are too much: no change of the passes helps, so one line says it.
  const bool hopeless = kept_between_steps(option) > option.worst_gpu().judgement.budget;
  for (const Step& step : steps) {
    const bool smaller = step.words.starts_with("micro-batch");
    if (smaller && small_enough) continue;
    if (!hopeless) {
      Variant variant{option.job.job, option.job.allocator};
      step.apply(variant);
      changes.push_back(simulate_change(option, lowering, step.words, variant, step.same_program));
      const bool fits = changes.back().verdict == Verdict::fits;
      one_fits = one_fits || fits;
      small_enough = small_enough || (smaller && fits);
    }
    step.apply(all);
    const bool replaces = smaller && !words.empty() && words.back().starts_with("micro-batch");
    if (replaces) words.pop_back();
    words.push_back(step.words);
  }
  if (!one_fits && words.size() > (hopeless ? 0 : 1)) {
    changes.push_back(simulate_change(option, lowering, join(words, ", "), all));
  }
  add_other_precision(option, lowering, std::move(all), std::move(words), changes);
}

}  // namespace

std::vector<Change> find_changes(const Option& option, const Lowering& lowering) {
  std::vector<Change> changes;
  try {
    add_changes(option, lowering, changes);
  } catch (const Stopped&) {  // those that are known
  }
  const std::int64_t needed = option.worst_gpu().judgement.needed;
  std::erase_if(changes, [&](const Change& change) {  // no help: it needs no less
    return change.verdict == Verdict::does_not_fit && change.needed >= needed;
  });
  return changes;
}

std::int64_t find_largest_micro_batch(const Option& option, const Lowering& lowering) {
  constexpr std::int64_t most = 1 << 20;
  Variant variant{option.job.job, option.job.allocator};
  variant.job.accumulation = 1;
  return largest(most, [&](std::int64_t micro) {
    variant.job.micro_batch = micro;
    const auto own = changed_program(lowering, variant.job, false);
    return judge_change(option, "", variant, own, Find::verdict).verdict == Verdict::fits;
  });
}

std::vector<AssumptionEffect> find_effects(const Option& option, const Lowering& lowering) {
  std::vector<AssumptionEffect> effects;
  // Two passes show what any number does: the later ones are like the second. Interleaved stages
  // take them in groups.
  const auto passes = [](TrainingJob job) {
    const bool groups = job.megatron && job.megatron->virtual_stages > 1;
    const std::int64_t few = groups ? job.megatron->pipeline : 2;
    job.accumulation = std::min(job.accumulation, few);
    return job;
  };
  const run::AllocatorSettings& allocator = option.job.allocator;
  std::optional<std::int64_t> peak;  // lowered where a choice is to be weighed
  const auto weigh = [&](AssumptionEffect& effect) {
    const std::string& key = effect.assumption.key;
    const bool counts_passes = key == "accumulation";
    const std::vector<TrainingJob> others = other_choices(option, key);
    if (!counts_passes && !others.empty() && !peak) {
      peak = peak_of(lowering, passes(option.job.job), allocator);
    }
    const auto own = counts_passes ? peak_of(lowering, option.job.job, allocator) : peak;
    for (const TrainingJob& other : others) {
      const auto changed = peak_of(lowering, counts_passes ? other : passes(other), allocator);
      if (!own || !changed) continue;
      effect.low = std::min(effect.low, *changed - *own);
      effect.high = std::max(effect.high, *changed - *own);
    }
  };
  bool stopped = false;
  for (const spec::Assumption& assumption : option.job.assumptions) {
    AssumptionEffect effect{assumption, 0, 0};
    try {
      if (!stopped) weigh(effect);
    } catch (const Stopped&) {
      stopped = true;
    }
    effects.push_back(std::move(effect));
  }
  const Context& context = option.worst_gpu().card.context;
  effects.push_back(
      {{"context", format_bytes(Bytes(context.bytes())),
        "the middle of what was seen on such cards, beside the allocator: " + context.source},
       context.low - context.bytes(),
       context.high - context.bytes()});
  const std::string times = run::measured_words(option.spec->cluster);
  if (!times.empty()) {
    effects.push_back({{"measured", option.spec->cluster.device.name,
                        option.spec->cluster.device.measured->source + ": " + times},
                       0,
                       0});
  }
  const Context& exchange = option.worst_gpu().card.exchange;
  if (exchange.high > 0) {
    effects.push_back({{"exchange", format_bytes(Bytes(exchange.bytes())),
                        "the middle of what NCCL was seen to take: " + exchange.source},
                       exchange.low - exchange.bytes(),
                       exchange.high - exchange.bytes()});
  }
  return effects;
}

}  // namespace shardfit::search
