// Of a search: a configuration as an option of its own, with all its passes and ranks or in short.

#include <algorithm>
#include <tuple>

#include "search/joint_space.h"
#include "search/long_steps.h"

namespace shardfit::search {

using spec::Parallel;

/// Of the head that a job has where its words say nothing; 0 for another, which may have less.
std::int64_t JointSpace::parameters_of_model() const {
  const Way& way = ways_.front();
  const auto& heads = way.lowering->family().heads;
  const bool causal = std::any_of(heads.begin(), heads.end(),
                                  [](const auto& head) { return head.first == "causal"; });
  if (way.job.job.head != (causal ? "causal" : heads.front().first)) return 0;
  return program::Lowering(way.lowering->model(), "plain-pytorch").parameter_count();
}

Point& JointSpace::frugal(std::size_t way) {
  const auto rank = [&](const Point& point) {
    return std::tuple(point.way != way, point.configuration.micro_batch,
                      -static_cast<std::int64_t>(point.policy), point.cut.has_value());
  };
  return *std::min_element(points_.begin(), points_.end(),
                           [&](const Point& a, const Point& b) { return rank(a) < rank(b); });
}

Point& JointSpace::frugal() {
  // What is split most comes first; then the smallest micro-batch and most recompute.
  constexpr Parallel by_state[] = {Parallel::fsdp2,    Parallel::zero3, Parallel::fsdp1,
                                   Parallel::tensor,   Parallel::zero2, Parallel::zero1,
                                   Parallel::pipeline, Parallel::ddp};
  const auto rank = [&](const Point& point) {
    const auto* place =
        std::find(std::begin(by_state), std::end(by_state), point.configuration.parallel);
    const spec::Split& split = point.configuration.split;
    return std::tuple(foreign(point), place - std::begin(by_state), -split.tensor * split.pipeline,
                      point.configuration.micro_batch, -static_cast<std::int64_t>(point.policy));
  };
  return *std::min_element(points_.begin(), points_.end(),
                           [&](const Point& a, const Point& b) { return rank(a) < rank(b); });
}

/// Passes that show what all of them hold and how long one takes.
std::int64_t JointSpace::few_passes(const Point& point) const {
  const std::int64_t passes = passes_of(point).some;
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
