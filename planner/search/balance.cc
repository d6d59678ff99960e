// What may even out an imbalance: layers moved between pipeline stages, smaller passes, another
// strategy. Each is simulated anew as a whole option.

#include <algorithm>
#include <numeric>

#include "search/imbalance.h"
#include "search/plan.h"
#include "search/sharing.h"

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

/// Layers each stage holds now.
std::vector<std::int64_t> layers_of(const Option& option, std::int64_t all) {
  const program::MegatronJob& job = *option.job.job.megatron;
  if (!job.stage_layers.empty()) return job.stage_layers;
  return std::vector<std::int64_t>(static_cast<std::size_t>(job.pipeline), all / job.pipeline);
}

/// Layers of the whole model, as its stages' programs number them.
std::int64_t count_layers(const Option& option) {
  constexpr std::string_view prefix = "decoder.layers.";
  const program::MegatronJob& job = *option.job.job.megatron;
  std::int64_t all = 0;
  for (const Gpu& gpu : option.gpus) {
    if (gpu.rank % (job.tensor * job.data) != 0) continue;  // one rank a stage
    std::int64_t own = 0;
    for (const std::string& path : gpu.program->modules) {
      if (!path.starts_with(prefix)) continue;
      own = std::max<std::int64_t>(own, std::stoll(path.substr(prefix.size())) + 1);
    }
    all += own;
  }
  return all;
}

/// Bytes at the peak that belong to one layer of a GPU's stage: its parameters with gradients and
/// states, and the activations of all passes in flight.
double bytes_a_layer(const Gpu& gpu, std::int64_t layers) {
  const Program& program = *gpu.program;
  const auto of = [&](Category c) {
    return static_cast<double>(gpu.peak.allocated_by[static_cast<std::size_t>(c)]);
  };
  double parameters = 0, activations = 0;
  for (const run::LiveStorage& live : gpu.peak.live) {
    const StorageInfo& storage = program.storages[live.storage];
    if (!program.modules[storage.module].starts_with("decoder.layers.")) continue;
    const auto bytes = static_cast<double>(live.block_bytes);
    if (storage.category == Category::parameter) parameters += bytes;
    if (storage.category == Category::activation) activations += bytes;
  }
  const double all = std::max(1.0, of(Category::parameter));
  const double with = of(Category::gradient) + of(Category::optimizer_state);
  return (parameters * (1 + with / all) + activations) / static_cast<double>(layers);
}

/// Moves layers one by one from where a linear estimate is highest to where it is lowest, as long
/// as the highest falls.
std::vector<std::int64_t> even_out(std::vector<std::int64_t> layers, std::vector<double> load,
                                   const std::vector<double>& a_layer) {
  while (true) {
    const auto most =
        static_cast<std::size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    std::size_t best = most;
    for (std::size_t s = 0; s < load.size(); ++s) {
      if (s == most) continue;
      if (best == most || load[s] + a_layer[s] < load[best] + a_layer[best]) best = s;
    }
    if (layers[most] <= 1 || load[best] + a_layer[best] >= load[most]) return layers;
    --layers[most];
    ++layers[best];
    load[most] -= a_layer[most];
    load[best] += a_layer[best];
  }
}

/// "6,9,9,8".
std::string listed(const std::vector<std::int64_t>& layers) {
  std::vector<std::string> texts;
  for (const std::int64_t n : layers) texts.push_back(std::to_string(n));
  return join(texts, ",");
}

/// The same as Megatron's pipeline_model_parallel_layout takes it: E embedding, t a layer, L head
/// and loss (megatron/core/transformer/pipeline_parallel_layer_layout.py).
std::string layout(const std::vector<std::int64_t>& layers) {
  std::string text = "E";
  for (std::size_t s = 0; s < layers.size(); ++s) {
    text += (s > 0 ? "|t*" : "t*") + std::to_string(layers[s]);
  }
  return text + "L";
}

/// Another split of the layers that lowers the need, or the busy time, of the stage with most.
std::optional<Fix> other_layers(const Option& option, Kind kind) {
  const program::MegatronJob& job = *option.job.job.megatron;
  const std::int64_t all = count_layers(option);
  if (job.virtual_stages > 1 || all < job.pipeline) return {};
  const std::vector<std::int64_t> now = layers_of(option, all);
  std::vector<double> load(now.size(), 0), a_layer(now.size(), 0);
  for (std::size_t i = 0; i < option.gpus.size(); ++i) {
    const Gpu& gpu = option.gpus[i];
    const auto stage = static_cast<std::size_t>(gpu.rank / (job.tensor * job.data));
    const std::int64_t layers = now[stage];
    const double own = kind == Kind::time ? option.timing->busy_seconds[i]
                                          : static_cast<double>(gpu.judgement.needed);
    load[stage] = std::max(load[stage], own);
    if (kind != Kind::time) {
      a_layer[stage] = std::max(a_layer[stage], bytes_a_layer(gpu, layers));
    }
  }
  if (kind == Kind::time) {  // of the stage that has little else
    double least = load[0] / static_cast<double>(now[0]);
    for (std::size_t s = 0; s < load.size(); ++s) {
      least = std::min(least, load[s] / static_cast<double>(now[s]));
    }
    std::fill(a_layer.begin(), a_layer.end(), least);
  }
  const std::vector<std::int64_t> then = even_out(now, load, a_layer);
  if (then == now) return {};
  RankJob changed = unshared(option);
  changed.job.megatron->stage_layers = then;
  return simulate(
      option, option.parallel, std::move(changed),
      "stage-layers " + listed(then) + " (pipeline_model_parallel_layout " + layout(then) + ")");
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

bool helps(const Option& option, const Imbalance& one, const Fix& fix) {
  if (fix.verdict > option.verdict) return false;
  if (one.kind == Kind::time) {
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
    const bool memory = one.kind == Kind::memory;
    if (option.split.pipeline > 1 && one.kind != Kind::share) {
      candidates.push_back(other_layers(option, one.kind));
      if (memory) candidates.push_back(smaller_passes(option));
      if (memory && !candidates.front()) candidates.push_back(vocabulary_parallel(option));
    }
    if (option.parallel == Parallel::zero1 && !option.job.job.megatron && one.kind != Kind::time) {
      candidates.push_back(even_shards(option));
    }
    for (const std::optional<Fix>& fix : candidates) {
      if (fix && helps(option, one, *fix) && (!one.fix || cheaper(*fix, *one.fix))) one.fix = fix;
    }
  }
}

}  // namespace shardfit::search
