#include "search/more_gpus.h"

#include "base/format.h"
#include "search/joint.h"
#include "search/least_kept.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

using spec::OptionSpec;
using spec::Parallel;

constexpr std::int64_t most_tried = 64;

/// The person's job with what is searched left to be set, on so many GPUs.
OptionSpec on_more(const Option& option, std::int64_t count) {
  OptionSpec more = *option.spec;
  more.cluster.count = count;
  more.job.parallel = {Parallel::automatic, option.spec->job.parallel.where, ""};
  more.job.degrees = {};
  more.job.stage_layers.reset();  // of so many stages
  more.job.host_links.reset();    // of so many cards
  return more;
}

/// The job as it is; with full recompute; and with the smallest passes, too.
std::vector<OptionSpec> variants(const Option& option, std::int64_t count) {
  std::vector<OptionSpec> all{on_more(option, count)};
  const spec::Recompute full{spec::RecomputeKind::full, ""};
  if (all.front().job.recompute.value.kind != spec::RecomputeKind::full) {
    all.push_back(all.front());
    all.back().job.recompute.value = full;
  }
  if (const std::int64_t micro = option.job.batch.micro; micro > 1) {
    all.push_back(all.back());
    spec::JobSpec& job = all.back().job;
    job.micro_batch = spec::Setting<std::int64_t>{1, {}, "tried"};
    job.accumulation.reset();
    if (!job.global_batch) {
      job.accumulation =
          spec::Setting<std::int64_t>{micro * option.job.batch.accumulation, {}, "tried"};
    }
  }
  return all;
}

/// The fastest of the ways that fit, of the framework's own program or of another's.
std::optional<Option> fastest(const OptionSpec& spec, bool foreign, std::int64_t parameters,
                              Lowerings& lowerings, const StopCheck& stop) {
  Diagnostics ignored;
  Ready ready = prepare(spec, lowerings, ignored);
  std::optional<Option> best;
  for (const Way& way : ready.possible) {
    if (way.parallel == Parallel::independent) continue;
    if ((way.job.profile.framework != framework_of(spec)) != foreign) continue;
    const spec::Split split = split_of(way.job.job, way.parallel, spec.cluster.count);
    const Card card = card_for(spec, way.parallel, 0);
    const std::int64_t least =
        kept_at_least(way.job, way.parallel, split, spec.cluster.count, parameters);
    if (least > card.usable - card.outside()) continue;
    RankJob job = way.job;
    job.job.stop = &stop;
    try {
      auto option = try_to_fit(spec, way.parallel, std::move(job), *way.lowering);
      if (!option) continue;
      const bool faster = !best || (option->timing && best->timing &&
                                    option->timing->step_seconds < best->timing->step_seconds);
      if (!faster) continue;
      best = std::move(option);
      best->lowering = way.lowering;
    } catch (const InputError&) {  // the model's program does not run so
    }
  }
  return best;
}

/// The option as a change of what was `asked`.
Change change_of(Option option, const Option& asked) {
  measure(option);
  const OptionSpec& spec = *option.spec;
  Configuration c{option.parallel,          option.split,
                  option.job.batch.micro,   option.job.batch.accumulation,
                  spec.job.recompute.value, {}};
  if (c.recompute.kind == spec::RecomputeKind::automatic) c.recompute = {};
  if (option.job.job.megatron) c.stage_layers = option.job.job.megatron->stage_layers;
  Change change;
  change.words = "on " + std::to_string(spec.cluster.count) + "x" + spec.cluster.device.name +
                 ": " + c.words() + (option.foreign() ? ", Megatron-core's program" : "");
  if (option.job.batch.global != asked.job.batch.global) {
    change.words += ", global batch " + format_count(option.job.batch.global) + " instead of " +
                    format_count(asked.job.batch.global);
  }
  change.verdict = option.verdict;
  change.needed = option.worst_gpu().judgement.needed;
  change.headroom = option.worst_gpu().judgement.headroom();
  if (option.timing) change.step_seconds = option.timing->step_seconds;
  return change;
}

}  // namespace

std::string MoreGpus::words(const Option& option) const {
  const std::int64_t first = 2 * option.spec->cluster.count;
  return "nor does it fit on " + std::to_string(first) +
         (looked_to > first ? " to " + std::to_string(looked_to) : "") + " " +
         option.spec->cluster.device.name +
         ", shared in any way that is modelled for it, with full recompute and micro-batches of "
         "one "
         "sample";
}

MoreGpus find_more_gpus(const Option& option, Lowerings& lowerings, const StopCheck& stop) {
  MoreGpus more;
  try {
    const std::int64_t own = option.spec->cluster.count;
    const bool asked = option.spec->job.parallel.value != Parallel::automatic && own > 1;
    for (std::int64_t count = asked ? own : 2 * own; count <= most_tried; count *= 2) {
      const std::vector<OptionSpec> specs = variants(option, count);
      for (const bool foreign : {false, true}) {
        for (const OptionSpec& spec : specs) {
          stop.check();
          if (auto found = fastest(spec, foreign, option.parameters, lowerings, stop)) {
            more.change = change_of(*std::move(found), option);
            return more;
          }
        }
      }
      if (count > own) more.looked_to = count;
    }
  } catch (const Stopped&) {  // no answer in time
  }
  return more;
}

}  // namespace shardfit::search
