// Of a search: a configuration as an option of its own, with all its passes and ranks or in short.

#include <algorithm>

#include "search/joint_space.h"

namespace shardfit::search {

void JointSpace::extend(Timing& timing, const Timing& shorter, double times) {
  const auto more = [times](double& all, double less) { all += times * (all - less); };
  more(timing.step_seconds, shorter.step_seconds);
  more(timing.low_seconds, shorter.low_seconds);
  more(timing.high_seconds, shorter.high_seconds);
  more(timing.exchange_seconds, shorter.exchange_seconds);
  more(timing.exposed_seconds, shorter.exposed_seconds);
  auto bytes = static_cast<double>(timing.exchange_bytes);
  more(bytes, static_cast<double>(shorter.exchange_bytes));
  timing.exchange_bytes = static_cast<std::int64_t>(bytes);
  for (std::size_t i = 0; i < timing.busy_seconds.size(); ++i) {
    more(timing.busy_seconds[i], shorter.busy_seconds[i]);
  }
}

/// Passes that show what all of them hold and how long one takes.
std::int64_t JointSpace::few_passes(const Point& point) const {
  const std::int64_t passes = point.configuration.accumulation;
  const auto& megatron = way(point).job.job.megatron;
  if (!megatron) return std::min(passes, short_passes);
  if (megatron->schedule == program::PipelineSchedule::gpipe) return passes;  // it holds all
  return std::min(passes, std::max(short_passes, 2 * megatron->pipeline));
}

void JointSpace::finish(Point& point, bool in_short) const {
  const auto own = std::make_shared<spec::OptionSpec>(spec_);
  const Configuration& c = point.configuration;
  const std::string because = "searched";
  own->job.parallel = {c.parallel, spec_.job.parallel.where, ""};
  own->job.micro_batch = spec::Setting<std::int64_t>{c.micro_batch, {}, because};
  own->job.recompute = {c.recompute, spec_.job.recompute.where, ""};
  if (!c.stage_layers.empty()) {
    own->job.stage_layers = spec::Setting<std::vector<std::int64_t>>{c.stage_layers, {}, because};
  }
  const std::int64_t some = in_short ? few_passes(point) : c.accumulation;
  RankJob job = job_of(point, point.blocks);
  job.job.accumulation = some;
  Option option = make_option(*own, c.parallel, std::move(job), *way(point).lowering);
  if (some < c.accumulation) {
    if (option.timing) {
      const auto& megatron = way(point).job.job.megatron;  // groups of an interleaved schedule
      const std::int64_t fewer = megatron && megatron->virtual_stages > 1 ? megatron->pipeline : 1;
      const Option shorter = lower(point, job_of(point, point.blocks), some - fewer, {}, true);
      extend(*option.timing, *shorter.timing,
             static_cast<double>(c.accumulation - some) / static_cast<double>(fewer));
    }
    option.warnings.push_back("the search was stopped, so " + std::to_string(some) + " of the " +
                              std::to_string(c.accumulation) +
                              " passes of a step were run: the others are taken to be like these");
  }
  option.lowering = way(point).lowering;
  option.own_spec = own;
  Found found;
  found.configuration = c;
  found.verdict = option.verdict;
  found.needed = option.worst_gpu().judgement.needed;
  found.headroom = option.worst_gpu().judgement.headroom();
  if (option.timing) {
    found.step_seconds = option.timing->step_seconds;
    found.samples_per_second = option.samples_per_second();
  }
  point.timing = option.timing;
  point.found = std::move(found);
  point.measured = true;
  point.option = std::make_shared<const Option>(std::move(option));
}

}  // namespace shardfit::search
