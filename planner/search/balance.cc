// What may even out an imbalance: layers moved between pipeline stages, smaller passes, another
// strategy. Each is simulated anew as a whole option.

#include <algorithm>
#include <array>
#include <map>

#include "base/format.h"
#include "search/imbalance.h"
#include "search/long_steps.h"
#include "search/plan.h"
#include "search/sharing.h"
#include "search/stage_cut.h"
#include "search/training_job.h"

namespace shardfit::search {
namespace {

using spec::Parallel;
using Fix = Imbalance::Fix;
using Kind = Imbalance::Kind;

/// By how much, as a share, a change must lower what is uneven to be a fix.
constexpr double worth_a_change = 0.02;

/// The one that costs the shortest step; where steps are not known, the least need.
bool cheaper(const Fix& a, const Fix& b) {
  if (a.verdict != b.verdict) return a.verdict < b.verdict;
  if (a.step_seconds && b.step_seconds) return *a.step_seconds < *b.step_seconds;
  return a.needed < b.needed;
}

/// The job of the option before a rank's strategy was put into it.
RankJob unshared(const Option& option) {
  RankJob job = option.job;
  job.job = option.whole;
  job.job.accumulation = job.batch.accumulation;
  return job;
}

/// A change that was simulated, and what its GPUs hold.
struct Candidate {
  Fix fix;
  std::vector<std::array<std::int64_t, category_count>> held;
};

Candidate candidate_of(const Option& other, std::string words) {
  Candidate out;
  out.fix.words = std::move(words);
  out.fix.verdict = other.verdict;
  for (const Gpu& gpu : other.gpus) {
    out.fix.needed = std::max(out.fix.needed, gpu.judgement.needed);
    auto& held = out.held.emplace_back();
    std::copy_n(std::begin(gpu.peak.allocated_by), held.size(), held.begin());
  }
  if (other.timing && other.verdict != Verdict::does_not_fit) {
    out.fix.step_seconds = other.timing->step_seconds;
  }
  return out;
}

Option simulated(const Option& option, Parallel parallel, RankJob job) {
  return make_option(*option.spec, parallel, std::move(job), *option.lowering);
}

Candidate simulate(const Option& option, Parallel parallel, RankJob job, std::string words) {
  return candidate_of(simulated(option, parallel, std::move(job)), std::move(words));
}

std::string layers_words(const std::vector<std::int64_t>& layers) {
  return "stage-layers " + cut_words(layers) + " (pipeline_model_parallel_layout " +
         layout_words(layers) + ")";
}

/// The split of the layers that lowers the need, or the busy time, of the stage with most.
std::optional<std::vector<std::int64_t>> better_layers(const Option& option, bool time) {
  if (option.job.job.megatron->virtual_stages > 1) return {};
  const StageLoads loads = stage_loads(option);
  const auto budget = static_cast<double>(option.gpus.front().judgement.budget);
  const auto then = best_cut(loads, time ? CutAim::shortest : CutAim::smallest, budget);
  if (!then || then->layers == loads.layers) return {};
  return then->layers;
}

std::optional<Candidate> other_layers(const Option& option, bool time) {
  const auto layers = better_layers(option, time);
  if (!layers) return {};
  RankJob changed = unshared(option);
  changed.job.megatron->stage_layers = *layers;
  return simulate(option, option.parallel, std::move(changed), layers_words(*layers));
}

bool is_1f1b(const program::MegatronJob& job) {
  return job.virtual_stages == 1 &&
         job.schedule == program::PipelineSchedule::one_forward_one_backward;
}

/// Fewest passes in flight; for a shorter step with the best layers a stage, which several chunks
/// do not take.
std::optional<Candidate> other_schedule(const Option& option, bool time) {
  if (is_1f1b(*option.job.job.megatron)) return {};
  RankJob changed = unshared(option);
  changed.job.megatron->virtual_stages = 1;
  changed.job.megatron->schedule = program::PipelineSchedule::one_forward_one_backward;
  const Option other = simulated(option, option.parallel, changed);
  const auto layers = better_layers(other, time);
  if (!time || !layers) return candidate_of(other, "schedule 1f1b");
  changed.job.megatron->stage_layers = *layers;
  return simulate(option, option.parallel, std::move(changed),
                  "schedule 1f1b, " + layers_words(*layers));
}

/// Half the samples a pass, twice the passes.
std::optional<Candidate> smaller_passes(const Option& option) {
  const spec::Batch& batch = option.job.batch;
  if (batch.micro % 2 != 0) return {};
  RankJob changed = unshared(option);
  changed.batch.micro /= 2;
  changed.batch.accumulation *= 2;
  changed.job.micro_batch = changed.batch.micro;
  changed.job.accumulation = changed.batch.accumulation;
  if (holds_all_passes(changed.job) && changed.job.accumulation > program::most_passes) return {};
  return simulate(option, option.parallel, std::move(changed),
                  "micro-batch " + std::to_string(batch.micro / 2) + ", accumulation " +
                      std::to_string(batch.accumulation * 2));
}

/// Half the stages, each of twice the tensor ranks: these split embedding and head by vocabulary.
std::optional<Candidate> vocabulary_parallel(const Option& option) {
  RankJob changed = unshared(option);
  program::MegatronJob& job = *changed.job.megatron;
  if (job.pipeline % 2 != 0) return {};
  job.pipeline /= 2;
  job.tensor *= 2;
  job.stage_layers.clear();
  if (!option.lowering->check(changed.job).empty()) return {};
  const std::string words = "parallel tensor, tp " + std::to_string(job.tensor) + ", pp " +
                            std::to_string(job.pipeline) +
                            ", which splits embedding and head by the vocabulary";
  return simulate(option, Parallel::tensor, std::move(changed), words);
}

/// Other degrees of expert parallelism: fewer ranks hold more experts each, which evens out what
/// they get. The one with the shortest step, where steps are known, else with the least need.
std::optional<Candidate> other_experts(const Option& option) {
  const program::MegatronJob& now = *option.job.job.megatron;
  if (option.job.job.routing == "balanced") return {};
  std::optional<Candidate> best;
  for (std::int64_t expert = 1; expert < now.expert; ++expert) {
    RankJob changed = unshared(option);
    changed.job.megatron->expert = expert;
    if (now.expert % expert != 0 || !option.lowering->check(changed.job).empty()) continue;
    Candidate one =
        simulate(option, option.parallel, std::move(changed),
                 "ep " + std::to_string(expert) + ", so that a rank holds more experts");
    if (!best || cheaper(one.fix, best->fix)) best = std::move(one);
  }
  return best;
}

/// Parameters cut evenly, whatever their sizes.
std::optional<Candidate> even_shards(const Option& option) {
  const auto& known = option.job.profile.parallel;
  if (std::find(known.begin(), known.end(), Parallel::fsdp2) == known.end()) return {};
  const std::string words = "parallel fsdp2, which cuts every parameter evenly";
  for (const Alternative& other : option.others) {
    if (other.parallel != Parallel::fsdp2 || !other.applies) continue;
    Candidate out;
    out.fix.words = words;
    out.fix.verdict = other.verdict;
    out.fix.needed = other.needed;
    if (other.timing) out.fix.step_seconds = other.timing->step_seconds;
    return out;
  }
  RankJob changed = unshared(option);
  if (!cannot_share(changed.job, Parallel::fsdp2).empty()) return {};
  return simulate(option, Parallel::fsdp2, std::move(changed), words);
}

/// A process a GPU, each with a loop of its own.
Candidate own_loops(const Option& option) {
  RankJob changed = unshared(option);
  set_precision(option.spec->job.precision.value, changed.job);  // as it was before drop_autocast
  return simulate(option, Parallel::ddp, std::move(changed),
                  "parallel ddp, a process for each GPU");
}

/// The same job under other words of a person.
Candidate simulate_as(const Option& option, const spec::OptionSpec& spec, std::string words) {
  return candidate_of(make_option(spec, option.parallel, unshared(option), *option.lowering),
                      std::move(words));
}

Candidate own_contexts(const Option& option) {
  spec::OptionSpec spec = *option.spec;
  spec.job.stray_contexts.reset();
  return simulate_as(
      option, spec,
      "torch.cuda.set_device(local_rank) first in every process, or one card each by "
      "CUDA_VISIBLE_DEVICES");
}

Candidate equal_slots(const Option& option, std::size_t fastest) {
  spec::OptionSpec spec = *option.spec;
  const BytesPerSecond rate = spec.job.host_links->value[fastest];
  spec.cluster.device.link.per_pair->value = rate;
  return simulate_as(option, spec, "a slot of " + format_rate(rate) + " for every card");
}

std::int64_t most_needed(const Option& option) {
  std::int64_t most = 0;
  for (const Gpu& gpu : option.gpus) most = std::max(most, gpu.judgement.needed);
  return most;
}

/// Whether `then` is less than `now` by enough.
bool lowers(std::int64_t then, std::int64_t now) {
  return static_cast<double>(then) < static_cast<double>(now) * (1 - worth_a_change);
}

bool helps(const Option& option, const Imbalance& one, const Fix& fix) {
  if (fix.verdict > option.verdict) return false;
  switch (one.kind) {
    case Kind::context:
      return true;
    case Kind::time:
    case Kind::link:
      return fix.step_seconds && option.timing &&
             *fix.step_seconds < option.timing->step_seconds * (1 - worth_a_change);
    case Kind::share:
      if (fix.held > 0) {
        return lowers(fix.held, held_of(option.gpus[one.gpu], one.categories)) &&
               fix.needed <= most_needed(option);
      }
      break;
    case Kind::memory:
      break;
  }
  return lowers(fix.needed, most_needed(option));
}

/// What several imbalances of an option may be evened out by, each simulated once.
class Fixes {
 public:
  explicit Fixes(Option& option) : option_(option) {}

  void find(Imbalance& one) {
    const bool time = one.kind == Kind::time;
    const bool bytes = one.kind == Kind::memory || one.kind == Kind::share;
    if (one.kind == Kind::context) take(one, own_contexts(option_));
    if (one.kind == Kind::link) {
      const Candidate equal = equal_slots(option_, one.against);
      if (equal.fix.step_seconds) {
        one.cost_seconds = option_.timing->step_seconds - *equal.fix.step_seconds;
      }
      take(one, equal);
    }
    if (option_.split.pipeline > 1 && (bytes || time)) {
      take(one, known(time ? Step::layers_for_time : Step::layers));
      take(one, known(time ? Step::schedule_for_time : Step::schedule));
      if (bytes) take(one, known(Step::passes));
      if (!one.fix || !known(Step::layers)) take(one, known(Step::vocabulary));
    }
    if (option_.job.job.megatron && option_.job.job.megatron->expert > 1 && (bytes || time)) {
      take(one, known(Step::experts));
    }
    if (option_.parallel == Parallel::zero1 && !option_.job.job.megatron && bytes) {
      take(one, known(Step::shards));
    }
    if (option_.parallel == Parallel::data_parallel && (bytes || time)) {
      take(one, known(Step::loops));
    }
  }

 private:
  enum class Step {
    layers,
    layers_for_time,
    schedule,
    schedule_for_time,
    passes,
    vocabulary,
    experts,
    shards,
    loops
  };

  std::optional<Candidate> made(Step step) const {
    switch (step) {
      case Step::layers:
      case Step::layers_for_time:
        return other_layers(option_, step == Step::layers_for_time);
      case Step::schedule:
      case Step::schedule_for_time:
        return other_schedule(option_, step == Step::schedule_for_time);
      case Step::passes:
        return smaller_passes(option_);
      case Step::vocabulary:
        return vocabulary_parallel(option_);
      case Step::experts:
        return other_experts(option_);
      case Step::shards:
        return even_shards(option_);
      case Step::loops:
        return own_loops(option_);
    }
    return {};
  }
  const std::optional<Candidate>& known(Step step) {
    const auto found = known_.find(step);
    return found != known_.end() ? found->second : known_.emplace(step, made(step)).first->second;
  }
  void take(Imbalance& one, const std::optional<Candidate>& candidate) const {
    if (!candidate) return;
    Fix fix = candidate->fix;
    for (const auto& held : candidate->held) {
      std::int64_t sum = 0;
      for (const Category category : one.categories) {
        sum += held[static_cast<std::size_t>(category)];
      }
      fix.held = std::max(fix.held, sum);
    }
    if (helps(option_, one, fix) && (!one.fix || cheaper(fix, *one.fix))) one.fix = std::move(fix);
  }

  Option& option_;
  std::map<Step, std::optional<Candidate>> known_;
};

}  // namespace

void find_fixes(Option& option) {
  Fixes fixes(option);
  try {
    for (Imbalance& one : option.imbalances) fixes.find(one);
  } catch (const Stopped&) {  // what was found stays
  }
}

}  // namespace shardfit::search
