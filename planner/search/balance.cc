// What may even out an imbalance: layers moved between pipeline stages, smaller passes, another
// strategy. Each is simulated anew as a whole option.

#include <algorithm>

#include "base/format.h"
#include "search/imbalance.h"
#include "search/plan.h"
#include "search/sharing.h"
#include "search/stage_cut.h"

namespace shardfit::search {
namespace {

using spec::Parallel;
using Fix = Imbalance::Fix;
using Kind = Imbalance::Kind;

/// By how much, as a share, a change must lower what is uneven to be a fix.
constexpr double worth_a_change = 0.02;

/// The job of the option before a rank's strategy was put into it.
RankJob unshared(const Option& option) {
  RankJob job = option.job;
  job.job = option.whole;
  return job;
}

Fix fix_of(const Option& other, std::string words) {
  Fix fix;
  fix.words = std::move(words);
  fix.verdict = other.verdict;
  for (const Gpu& gpu : other.gpus) fix.needed = std::max(fix.needed, gpu.judgement.needed);
  if (other.timing) fix.step_seconds = other.timing->step_seconds;
  return fix;
}

Fix simulate(const Option& option, Parallel parallel, RankJob job, std::string words) {
  return fix_of(make_option(*option.spec, parallel, std::move(job), *option.lowering),
                std::move(words));
}

/// The split of the layers that lowers the need, or the busy time, of the stage with most.
std::optional<Fix> other_layers(const Option& option, Kind kind) {
  if (option.job.job.megatron->virtual_stages > 1) return {};
  const StageLoads loads = stage_loads(option);
  const bool time = kind == Kind::time;
  const auto budget = static_cast<double>(option.gpus.front().judgement.budget);
  const auto then = best_cut(loads, time ? CutAim::shortest : CutAim::smallest, budget);
  if (!then || then->layers == loads.layers) return {};
  RankJob changed = unshared(option);
  changed.job.megatron->stage_layers = then->layers;
  return simulate(option, option.parallel, std::move(changed),
                  "stage-layers " + cut_words(then->layers) + " (pipeline_model_parallel_layout " +
                      layout_words(then->layers) + ")");
}

/// Half the samples a pass, twice the passes.
std::optional<Fix> smaller_passes(const Option& option) {
  const spec::Batch& batch = option.job.batch;
  if (batch.micro % 2 != 0 || batch.accumulation * 2 > program::most_passes) return {};
  RankJob changed = unshared(option);
  changed.batch.micro /= 2;
  changed.batch.accumulation *= 2;
  changed.job.micro_batch = changed.batch.micro;
  changed.job.accumulation = changed.batch.accumulation;
  return simulate(option, option.parallel, std::move(changed),
                  "micro-batch " + std::to_string(batch.micro / 2) + ", accumulation " +
                      std::to_string(batch.accumulation * 2));
}

/// Half the stages, each of twice the tensor ranks: these split embedding and head by vocabulary.
std::optional<Fix> vocabulary_parallel(const Option& option) {
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

/// Parameters cut evenly, whatever their sizes.
std::optional<Fix> even_shards(const Option& option) {
  const auto& known = option.job.profile.parallel;
  if (std::find(known.begin(), known.end(), Parallel::fsdp2) == known.end()) return {};
  const std::string words = "parallel fsdp2, which cuts every parameter evenly";
  for (const Alternative& other : option.others) {
    if (other.parallel != Parallel::fsdp2 || !other.applies) continue;
    Fix fix{words, other.verdict, other.needed, {}};
    if (other.timing) fix.step_seconds = other.timing->step_seconds;
    return fix;
  }
  RankJob changed = unshared(option);
  if (!cannot_share(changed.job, Parallel::fsdp2).empty()) return {};
  return simulate(option, Parallel::fsdp2, std::move(changed), words);
}

/// The same job under other words of a person.
Fix simulate_as(const Option& option, const spec::OptionSpec& spec, std::string words) {
  return fix_of(make_option(spec, option.parallel, unshared(option), *option.lowering),
                std::move(words));
}

Fix own_contexts(const Option& option) {
  spec::OptionSpec spec = *option.spec;
  spec.job.stray_contexts.reset();
  return simulate_as(
      option, spec,
      "torch.cuda.set_device(local_rank) first in every process, or one card each by "
      "CUDA_VISIBLE_DEVICES");
}

Fix equal_slots(const Option& option, std::size_t fastest) {
  spec::OptionSpec spec = *option.spec;
  const BytesPerSecond rate = spec.job.host_links->value[fastest];
  spec.cluster.device.link.per_pair->value = rate;
  return simulate_as(option, spec, "a slot of " + format_rate(rate) + " for every card");
}

bool helps(const Option& option, const Imbalance& one, const Fix& fix) {
  if (fix.verdict > option.verdict) return false;
  if (one.kind == Kind::context) return true;
  if (one.kind == Kind::time || one.kind == Kind::link) {
    return fix.step_seconds &&
           *fix.step_seconds < option.timing->step_seconds * (1 - worth_a_change);
  }
  const auto now = static_cast<double>(option.gpus[one.gpu].judgement.needed);
  return static_cast<double>(fix.needed) < now * (1 - worth_a_change);
}

/// The one that costs the shortest step; where steps are not known, the least need.
bool cheaper(const Fix& a, const Fix& b) {
  if (a.verdict != b.verdict) return a.verdict < b.verdict;
  if (a.step_seconds && b.step_seconds) return *a.step_seconds < *b.step_seconds;
  return a.needed < b.needed;
}

}  // namespace

void find_fixes(Option& option) {
  for (Imbalance& one : option.imbalances) {
    std::vector<std::optional<Fix>> candidates;
    if (one.kind == Kind::context) candidates.push_back(own_contexts(option));
    if (one.kind == Kind::link) candidates.push_back(equal_slots(option, one.against));
    const bool memory = one.kind == Kind::memory;
    const bool layers = memory || one.kind == Kind::time;
    if (option.split.pipeline > 1 && layers) {
      candidates.push_back(other_layers(option, one.kind));
      if (memory) candidates.push_back(smaller_passes(option));
      if (memory && !candidates.front()) candidates.push_back(vocabulary_parallel(option));
    }
    if (option.parallel == Parallel::zero1 && !option.job.job.megatron &&
        (memory || one.kind == Kind::share)) {
      candidates.push_back(even_shards(option));
    }
    for (const std::optional<Fix>& fix : candidates) {
      if (fix && helps(option, one, *fix) && (!one.fix || cheaper(*fix, *one.fix))) one.fix = fix;
    }
  }
}

}  // namespace shardfit::search
