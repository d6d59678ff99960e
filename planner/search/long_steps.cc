#include "search/long_steps.h"

#include <algorithm>

#include "search/sharing.h"

namespace shardfit::search {
namespace {

using program::TrainingJob;

/// Of a step with more than are lowered, so many are: what a pass leaves has settled by then.
constexpr std::int64_t enough_passes = 16;

std::optional<Timing> timing_of_all(const spec::OptionSpec& spec, spec::Parallel parallel,
                                    const TrainingJob& whole, const program::Lowering& lowering,
                                    const std::shared_ptr<const Program>& known) {
  Option option;
  option.spec = &spec;
  option.parallel = parallel;
  const std::int64_t gpus = spec.cluster.count;
  const std::vector<RankGroup> groups = rank_groups(whole, parallel, gpus);
  const auto job_of = [&](int rank) { return job_of_rank(whole, parallel, gpus, rank); };
  const std::vector<LoweredGroup> lowered = known
                                                ? std::vector<LoweredGroup>{{groups.front(), known}}
                                                : lower_groups(lowering, groups, job_of);
  for (const auto& [group, program] : lowered) {
    Gpu gpu;
    gpu.program = program;
    for (const int rank : group.ranks) {
      gpu.index = rank;
      gpu.rank = parallel == spec::Parallel::independent ? 0 : rank;
      option.gpus.push_back(gpu);
    }
  }
  std::sort(option.gpus.begin(), option.gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
  std::string missing;
  return time_of(option, missing);
}

}  // namespace

bool holds_all_passes(const TrainingJob& job) {
  return job.megatron && job.megatron->pipeline > 1 &&
         job.megatron->schedule == program::PipelineSchedule::gpipe;
}

PassesRun passes_run(const TrainingJob& job) {
  const bool groups = job.megatron && job.megatron->virtual_stages > 1;
  const std::int64_t unit = groups ? job.megatron->pipeline : 1;
  if (job.accumulation <= program::most_passes || holds_all_passes(job)) {
    return {job.accumulation, unit};
  }
  const std::int64_t stages = job.megatron ? job.megatron->pipeline : 1;
  // A pipeline has filled by then, and one more group is like the one before.
  const std::int64_t some = (std::max(enough_passes, 2 * stages) + unit - 1) / unit * unit;
  return {std::min(job.accumulation, some), unit};
}

TrainingJob few_of(TrainingJob job) {
  const PassesRun run = passes_run(job);
  if (run.some == job.accumulation) return job;
  if (job.megatron) {
    job.accumulation = run.some;
  } else {
    job.equal_passes = program::EqualPasses::leave;
  }
  return job;
}

void extend(Timing& timing, const Timing& shorter, double times) {
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

std::optional<Timing> step_timing(const spec::OptionSpec& spec, spec::Parallel parallel,
                                  TrainingJob whole, const program::Lowering& lowering,
                                  const std::shared_ptr<const Program>& known) {
  whole.record_computes = true;
  whole.equal_passes = program::EqualPasses::copy;
  const std::int64_t all = whole.accumulation;
  const PassesRun run = passes_run(whole);
  whole.accumulation = run.some;
  auto timing = timing_of_all(spec, parallel, whole, lowering, known);
  if (!timing || run.some == all) return timing;
  whole.accumulation -= run.unit;
  const auto shorter = timing_of_all(spec, parallel, whole, lowering, nullptr);
  extend(*timing, *shorter, static_cast<double>(all - run.some) / static_cast<double>(run.unit));
  return timing;
}

}  // namespace shardfit::search
