// What else the job could be: changes that would make it fit, and the weight of what was assumed.
// Each is lowered and run anew.

#include <algorithm>
#include <functional>
#include <utility>

#include "base/format.h"
#include "program/titan_units.h"
#include "run/machine.h"
#include "run/memory_clock.h"
#include "search/largest.h"
#include "search/long_steps.h"
#include "search/plan.h"
#include "search/sharing.h"
#include "search/titan.h"

namespace shardfit::search {
namespace {

using program::Lowering;
using program::TrainingJob;

/// A job before its way of sharing is put into it, and the allocator's settings it runs under.
struct Variant {
  TrainingJob whole;
  run::AllocatorSettings allocator;
};

struct Step {
  std::string words;
  std::function<void(Variant&)> apply;
  bool same_program = false;  // only the allocator's mode changes
  bool smaller = false;       // passes; of several, the last that was applied holds
};

std::int64_t half(std::int64_t n) { return n / 2; }

/// Numbers of fewer bits, where the framework's own program has no such copies of its own.
std::optional<Step> other_precision(const Option& option) {
  const TrainingJob& job = option.whole;
  const bool own = !job.megatron && job.framework != "deepspeed";
  if (!own || job.parameters != DType::f32 || job.autocast != DType::bf16) return {};
  Step step;
  step.words = "precision bf16 (parameters and states in 16 bits)";
  step.apply = [](Variant& v) {
    if (v.whole.titan) {
      set_titan_precision(spec::Precision::bf16, v.whole);
    } else {
      set_precision(spec::Precision::bf16, v.whole);
    }
  };
  return step;
}

/// Single changes that apply to the job, those that cost least first: nothing but an allocator's
/// mode, then the kernel of the optimizer's step, then smaller passes, then time for recomputation.
std::vector<Step> single_steps(const Option& option) {
  const RankJob& rank = option.job;
  std::vector<Step> steps;
  const auto add = [&](std::string words, std::function<void(Variant&)> apply) -> Step& {
    steps.push_back({std::move(words), std::move(apply)});
    return steps.back();
  };
  // Gaps between blocks are all that another mode of the allocator can spare.
  const Judgement& own = option.worst_gpu().judgement;
  const bool gaps = run::requested_at_peaks(own.unlimited) <= own.budget;
  if (!rank.allocator.expandable_segments && gaps) {
    add("allocator expandable_segments:True", [](Variant& v) {
      v.allocator.expandable_segments = true;
    }).same_program = true;
  }
  if (rank.job.optimizer == "adamw" && rank.job.implementation != program::Implementation::fused) {
    add("optimizer adamw-fused",
        [](Variant& v) { v.whole.implementation = program::Implementation::fused; });
  }
  for (std::int64_t micro = half(rank.batch.micro); micro >= 1; micro = half(micro)) {
    if (rank.batch.micro % micro != 0) continue;
    const std::int64_t passes = rank.batch.accumulation * (rank.batch.micro / micro);
    if (passes > program::most_passes && holds_all_passes(rank.job)) break;
    add("micro-batch " + std::to_string(micro) + ", accumulation " + std::to_string(passes),
        [micro, passes](Variant& v) {
          v.whole.micro_batch = micro;
          v.whole.accumulation = passes;
        })
        .smaller = true;
  }
  if (rank.job.recompute != program::Recompute::full) {
    add("recompute full", [](Variant& v) { v.whole.recompute = program::Recompute::full; });
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

/// What comes of changes of one option.
class Changes {
 public:
  Changes(const Option& option, const Lowering& lowering)
      : option_(option), lowering_(lowering), own_{option.whole, option.job.allocator} {
    own_.whole.accumulation = option.job.batch.accumulation;
  }

  std::vector<Change> find();
  std::vector<Change>& known() { return changes_; }
  bool fits(std::int64_t micro_batch) const;

 private:
  Variant with(const std::vector<Step>& steps) const {
    Variant variant = own_;
    for (const Step& step : steps) step.apply(variant);
    return variant;
  }
  TrainingJob of_rank(const Variant& variant, int rank) const {
    return job_of_rank(few_of(variant.whole), option_.parallel, option_.spec->cluster.count, rank);
  }
  Judgement judged(const Variant& variant, const Program& program, Find find) const {
    return judge(program, option_.worst_gpu().card, variant.allocator, option_.accuracy, find,
                 variant.whole.stop);
  }
  bool fits(const std::vector<Step>& steps) const;
  /// Its numbers join what is known.
  const Change& simulate(const std::vector<Step>& steps);
  void combine(std::vector<Step> steps, const std::vector<Step>& passes);

  const Option& option_;
  const Lowering& lowering_;
  Variant own_;
  std::vector<Change> changes_;
};

bool Changes::fits(const std::vector<Step>& steps) const {
  const Variant variant = with(steps);
  const Program program = lowering_.lower(in_short(of_rank(variant, option_.worst_gpu().rank)));
  return judged(variant, program, Find::verdict).verdict == Verdict::fits;
}

bool Changes::fits(std::int64_t micro_batch) const {
  Step step;
  step.apply = [micro_batch](Variant& v) {
    v.whole.micro_batch = micro_batch;
    v.whole.accumulation = 1;
  };
  return fits(std::vector<Step>{step});
}

const Change& Changes::simulate(const std::vector<Step>& steps) {
  const Variant variant = with(steps);
  TrainingJob job = of_rank(variant, option_.worst_gpu().rank);
  // One card's program gives its step, too, where it is whole.
  const bool whole = option_.gpus.size() == 1 && job.accumulation <= few_passes;
  job.record_computes = whole;
  const bool same = steps.size() == 1 && steps.front().same_program;
  std::shared_ptr<const Program> own;
  if (!same || job.accumulation > few_passes) {
    own = std::make_shared<const Program>(lowering_.lower(in_short(std::move(job))));
  }
  const Judgement judgement = judged(variant, own ? *own : *option_.worst_gpu().program, Find::all);
  std::vector<std::string> words;
  for (const Step& step : steps) words.push_back(step.words);
  Change change{join(words), judgement.verdict, judgement.needed, judgement.headroom(), {}};
  if (change.verdict != Verdict::does_not_fit) {
    const auto timing = step_timing(*option_.spec, option_.parallel, variant.whole, lowering_,
                                    whole ? own : nullptr);
    if (timing) change.step_seconds = timing->step_seconds;
  }
  changes_.push_back(std::move(change));
  return changes_.back();
}

/// The peak of a job's live bytes; nothing where no card can hold it.
std::optional<std::int64_t> peak_of(const Lowering& lowering, TrainingJob job,
                                    const run::AllocatorSettings& allocator) {
  job.record_computes = false;
  // Where nothing is shared, a third step holds what the second held.
  const bool alone = !job.ddp && !job.fsdp1 && !job.fsdp2 && !job.deepspeed && !job.megatron;
  if (alone && !job.titan) job.steps = std::min(job.steps, 2);
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
    std::erase_if(others,
                  [&](const TrainingJob& j) { return !cannot_share(j, option.parallel).empty(); });
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

/// Those of `steps` of which none can be left out, the dearest left out first, where they fit
/// together; else all of them. `passes`: what smaller ones were tried, the largest first.
void Changes::combine(std::vector<Step> steps, const std::vector<Step>& passes) {
  if (steps.size() > 1 && fits(steps)) {
    for (std::size_t i = steps.size(); i-- > 0;) {
      std::vector<Step> fewer = steps;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (fits(fewer)) steps = std::move(fewer);
    }
    const auto smaller =
        std::find_if(steps.begin(), steps.end(), [](const Step& step) { return step.smaller; });
    for (std::size_t i = 0; smaller != steps.end() && i + 1 < passes.size(); ++i) {
      const Step smallest = std::exchange(*smaller, passes[i]);
      if (fits(steps)) break;
      *smaller = smallest;
    }
  }
  simulate(steps);
}

std::vector<Change> Changes::find() {
  std::vector<Step> all, passes;  // of smaller passes the smallest is in `all`
  const auto any_fits = [&] {
    return std::any_of(changes_.begin(), changes_.end(),
                       [](const Change& change) { return change.verdict == Verdict::fits; });
  };
  bool small_enough = false;  // a smaller micro-batch than one that fits is no news
  // Parameters and states alone are too much: no change of the passes helps, so one line says it.
  const bool hopeless = kept_between_steps(option_) > option_.worst_gpu().judgement.budget;
  for (const Step& step : single_steps(option_)) {
    if (step.smaller && small_enough) continue;
    if (!hopeless) {
      const bool fits = simulate({step}).verdict == Verdict::fits;
      small_enough = small_enough || (step.smaller && fits);
    }
    if (step.smaller) passes.push_back(step);
    if (step.smaller && !all.empty() && all.back().smaller) all.pop_back();
    all.push_back(step);
  }
  if (!any_fits() && all.size() > (hopeless ? 0 : 1)) combine(all, passes);
  // Where all that costs only time has been tried, other numbers are left.
  const auto precision = other_precision(option_);
  if (!precision || any_fits()) return changes_;
  const bool enough = simulate({*precision}).verdict == Verdict::fits;
  if (enough || all.empty()) return changes_;
  all.push_back(*precision);
  combine(std::move(all), passes);
  return changes_;
}

}  // namespace

std::vector<Change> find_changes(const Option& option, const Lowering& lowering) {
  Changes search(option, lowering);
  std::vector<Change> changes;
  try {
    changes = search.find();
  } catch (const Stopped&) {  // those that are known
    changes = search.known();
  }
  const std::int64_t needed = option.worst_gpu().judgement.needed;
  std::erase_if(changes, [&](const Change& change) {  // no help: it needs no less
    return change.verdict == Verdict::does_not_fit && change.needed >= needed;
  });
  return changes;
}

std::int64_t find_largest_micro_batch(const Option& option, const Lowering& lowering) {
  constexpr std::int64_t most = 1 << 20;
  const Changes changes(option, lowering);
  return largest(most, [&](std::int64_t micro) { return changes.fits(micro); });
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
