#include "search/joint_space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/format.h"
#include "run/memory_clock.h"
#include "search/block_levels.h"
#include "search/least_kept.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

using program::TrainingJob;
using spec::Parallel;
using spec::RecomputeKind;

/// Micro-batches tried where no global batch bounds them.
constexpr std::int64_t most_micro_batch = 4096;

/// As a profile lists it.
const std::string any_first_blocks = "first-N-blocks";

std::vector<std::int64_t> divisors_of(std::int64_t n) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d != n / d) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

struct Batches {
  std::int64_t micro, passes;
};

/// Micro-batches of a way with their passes: one, or all that keep the samples of a step.
std::vector<Batches> batches_of(const spec::OptionSpec& spec, const Way& way) {
  const spec::Batch& batch = way.job.batch;
  if (!spec.job.any_micro_batch) return {{batch.micro, batch.accumulation}};
  std::vector<Batches> out;
  if (!spec.job.global_batch) {  // each makes a batch of its own
    for (std::int64_t n = 1; n <= most_micro_batch; n *= 2) {
      out.push_back({n, batch.accumulation});
      if (n > 1) out.push_back({n + n / 2, batch.accumulation});
    }
    return out;
  }
  const std::int64_t samples = batch.micro * batch.accumulation;
  for (const std::int64_t micro : divisors_of(samples)) {
    const std::int64_t passes = samples / micro;
    const bool asked = !spec.job.accumulation || spec.job.accumulation->value == passes;
    const bool held = passes > program::most_passes && holds_all_passes(way.job.job);
    if (asked && !held) out.push_back({micro, passes});
  }
  return out;
}

std::vector<Policy> policies_of(const spec::OptionSpec& spec, const Way& way) {
  const spec::Recompute& asked = spec.job.recompute.value;
  if (asked.kind != RecomputeKind::automatic) return {{asked, way.job.job.recompute, false}};
  std::vector<Policy> out{{{}, program::Recompute::none, false}};
  if (way.job.profile.selective) {
    for (const SelectivePolicy& policy : selective_policies()) {
      if (!offers_policy(way.job.profile, policy.name)) continue;
      out.push_back({{RecomputeKind::selective, policy.name}, policy.kind, false});
    }
    if (offers_policy(way.job.profile, any_first_blocks)) {
      out.push_back({{RecomputeKind::selective, ""}, program::Recompute::first_blocks, true});
    }
  }
  out.push_back({{RecomputeKind::full, ""}, program::Recompute::full, false});
  return out;
}

bool offers(const Profile& profile, const Policy& policy) {
  if (policy.words.kind != RecomputeKind::selective) return true;
  const std::string& word = policy.some_blocks ? any_first_blocks : policy.words.policy;
  return profile.selective && offers_policy(profile, word);
}

bool is_product(const Compute& compute) { return compute.m > 0 && compute.n > 0 && compute.k > 0; }

/// What the last step computes.
template <class See>
void see_computes(const Program& program, See see) {
  std::size_t from = 0;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions[i].action == Action::reset_peaks) from = i;  // a step begins
  }
  for (std::size_t i = from; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.action == Action::compute) see(program.computes[instruction.id]);
  }
}

}  // namespace

JointSpace::JointSpace(const spec::OptionSpec& spec, std::vector<Way> ways,
                       std::int64_t passes_for_bytes)
    : spec_(spec), ways_(std::move(ways)), passes_for_bytes_(passes_for_bytes) {
  const run::Machine machine = run::machine_of(spec.cluster);
  missing_ = machine.missing;
  peak_rate_ = std::max(machine.device.bf16, machine.device.fp16);
  contention_ = machine.contention;
  if (timed()) times_.emplace(machine.speed, machine.device, machine.capability_major);
  policies_ = policies_of(spec, ways_.front());
  const auto blocks = std::find_if(policies_.begin(), policies_.end(),
                                   [](const Policy& policy) { return policy.some_blocks; });
  if (blocks != policies_.end()) {
    const Way& front = ways_.front();
    units_ = front.lowering->recompute_unit_paths(front.job.job.head);
    if (units_of(0) < 2) policies_.erase(blocks);
  }
  accuracy_ = accuracy_of(ways_.front().job.profile.framework,
                          spec::task_names()[static_cast<std::size_t>(spec.job.task.value)]);
  if (ways_.front().job.job.device.rocm) accuracy_ = rocm_accuracy(std::move(accuracy_));
  for (const Way& way : ways_) cards_.push_back(card_for(spec, way.parallel, 0));
  add_points();
  if (points_.size() > 1) bound_times();
}

void JointSpace::add_points() {
  const std::int64_t parameters = parameters_of_model();
  // A policy that was asked for is one of every way that is possible.
  const bool any_policy = spec_.job.recompute.value.kind == RecomputeKind::automatic;
  for (std::size_t w = 0; w < ways_.size(); ++w) {
    const Way& way = ways_[w];
    const spec::Split split = split_of(way.job.job, way.parallel, spec_.cluster.count);
    for (std::size_t p = 0; p < policies_.size(); ++p) {
      if (any_policy && !offers(way.job.profile, policies_[p])) continue;
      for (const Batches& batch : batches_of(spec_, way)) {
        Point point;
        point.configuration = {way.parallel,       split, batch.micro, batch.passes,
                               policies_[p].words, {}};
        point.way = w;
        point.policy = p;
        point.least = kept_at_least(way.job, way.parallel, split, spec_.cluster.count, parameters);
        point.too_large = point.least > budget(point);
        // A schedule may ask for micro-batches in whole rounds.
        if (!way.lowering->check(job_of(point, 1).job).empty()) continue;
        points_.push_back(std::move(point));
      }
    }
  }
  const std::size_t uncut = points_.size();
  for (std::size_t i = 0; i < uncut; ++i) add_cuts(i);
}

/// Blocks of which some may be run again: of a pipeline, those of its fullest stage.
std::int64_t JointSpace::units_of(std::size_t way) const {
  const auto& megatron = ways_[way].job.job.megatron;
  if (!megatron) return static_cast<std::int64_t>(units_.size());
  const std::vector<std::int64_t>& stages = megatron->stage_layers;
  if (!stages.empty()) return *std::max_element(stages.begin(), stages.end());
  return ways_[way].lowering->pipeline_layers() / (megatron->pipeline * megatron->virtual_stages);
}

bool JointSpace::foreign(const Point& point) const {
  return way(point).job.profile.framework !=
         spec::framework_names()[static_cast<std::size_t>(spec_.job.framework.value)];
}

/// Whether ranks run programs of the same sizes, but for how parameters divide: then the first one,
/// which holds most, stands for all while configurations are compared.
bool JointSpace::alike(const Point& point) const { return !way(point).job.job.megatron; }

/// Ranks that see other samples.
std::int64_t JointSpace::data_ranks(const Point& point) const {
  return point.configuration.split.data;
}

std::vector<std::string> JointSpace::not_tried() const {
  std::vector<std::string> out;
  if (!spec_.job.any_micro_batch) return out;
  if (!spec_.job.global_batch) {
    out.push_back("micro-batches between 1, 2, 3, 4, 6, 8, 12, 16 and so on, and above " +
                  format_count(most_micro_batch) + " ('shardfit batch' finds the largest)");
    return out;
  }
  const bool capped = std::any_of(ways_.begin(), ways_.end(), [](const Way& way) {
    return way.job.batch.micro * way.job.batch.accumulation > program::most_passes &&
           holds_all_passes(way.job.job);
  });
  if (capped && !spec_.job.accumulation) {
    out.push_back("more than " + format_count(program::most_passes) +
                  " micro-batches a step with gpipe, which holds all of them");
  }
  return out;
}

std::int64_t JointSpace::samples_per_step(const Point& point) const {
  const Configuration& c = point.configuration;
  const bool apart = c.parallel == Parallel::independent;
  return c.micro_batch * c.accumulation * (apart ? spec_.cluster.count : data_ranks(point));
}

std::int64_t JointSpace::budget(const Point& point) const {
  return cards_[point.way].usable - cards_[point.way].outside();
}

/// Of blocks that may differ, the one that is run again may have hardly any.
double JointSpace::least_flops(std::size_t policy) const {
  return policies_[policy].some_blocks ? flops_.front() : flops_[policy];
}

/// Products at the highest rate of all dtypes take so long, whatever their shape.
void JointSpace::bound_times() {
  if (!timed()) return;
  const std::int64_t micro = points_.front().configuration.micro_batch;
  flops_.resize(policies_.size());
  for (std::size_t p = 0; p < policies_.size(); ++p) {
    if (!policies_[p].some_blocks) flops_[p] = probe(0, p, micro).flops;
  }
  const spec::Split& split = points_.front().configuration.split;
  const bool whole = split.tensor * split.pipeline == 1;  // the program probed has all layers
  const auto gpus = static_cast<double>(spec_.cluster.count);
  for (Point& point : points_) {
    const Configuration& c = point.configuration;
    auto samples = static_cast<double>(c.micro_batch * c.accumulation);
    if (!alike(point)) {  // what splits a model's layers splits its products, at best evenly
      if (!whole || foreign(point)) continue;
      samples = static_cast<double>(samples_per_step(point)) / gpus;
    }
    point.least_seconds = least_flops(point.policy) * samples / peak_rate_;
  }
}

/// What a step of the first rank computes more, at least, than without recompute.
double JointSpace::least_more_seconds(const Point& point) {
  const Configuration& c = point.configuration;
  const bool some = policies_[point.policy].some_blocks;
  double part = 1;
  if (some) {  // of blocks that differ, the one that is run again may take hardly any time
    if (levels(point.way, c.micro_batch).chosen > 0) return 0;
    part = 1 / static_cast<double>(units_of(point.way));
  }
  const std::size_t policy = some ? policies_.size() - 1 : point.policy;
  const auto& megatron = way(point).job.job.megatron;
  const std::int64_t passes = megatron ? megatron->pipeline : 1;  // of a probe
  return part * static_cast<double>(c.accumulation) / static_cast<double>(passes) *
         (probe(point.way, policy, c.micro_batch).seconds -
          probe(point.way, 0, c.micro_batch).seconds);
}

/// The clock without contention is a system of sums and maxima, so more operators make no step
/// shorter; contention lengthens one by its share of the exchange's time at most.
void JointSpace::bound_time(Point& point) {
  point.time_bounded = true;
  const Point* without = without_recompute(point);
  if (!without || !without->timing) return;
  const Timing& timing = *without->timing;
  const double slack = contention_ * timing.exchange_seconds;
  const double more = least_more_seconds(point);
  // Of the ranks that the first one stands for, where they are not all.
  const double busy =
      alike(point) ? *std::max_element(timing.busy_seconds.begin(), timing.busy_seconds.end())
                   : timing.busy_seconds.front();
  point.least_seconds = std::max(point.least_seconds,
                                 std::max(timing.step_seconds, busy + std::max(0.0, more)) - slack);
}

RankJob JointSpace::job_of(const Point& point, std::int64_t blocks) const {
  const Configuration& c = point.configuration;
  RankJob job = ways_[point.way].job;
  job.batch.micro = job.job.micro_batch = c.micro_batch;
  job.batch.accumulation = job.job.accumulation = c.accumulation;
  job.batch.global = c.micro_batch * c.accumulation * data_ranks(point);
  job.job.recompute = policies_[point.policy].kind;
  job.job.stop = stop_;
  if (!c.stage_layers.empty()) job.job.megatron->stage_layers = c.stage_layers;
  if (!policies_[point.policy].some_blocks || blocks == 0) return job;
  const auto known = levels_.find({point.way, c.micro_batch});
  if (known == levels_.end()) {  // any will do
    job.job.recompute_blocks = blocks;
    return job;
  }
  const auto& set = known->second.sets[static_cast<std::size_t>(blocks) - 1];
  if (are_first(set)) {
    job.job.recompute_blocks = static_cast<std::int64_t>(set.size());
  } else {
    job.job.recompute = program::Recompute::chosen_blocks;
    job.job.chosen_blocks = set;
  }
  return job;
}

Program JointSpace::one_pass(std::size_t way, std::size_t policy, std::int64_t micro) {
  Point point;
  point.configuration = {ways_[way].parallel, {}, micro, 1, {}, {}};
  point.way = way;
  point.policy = policy;
  RankJob job = job_of(point, policies_[policy].some_blocks
                                  ? static_cast<std::int64_t>(levels(way, micro).sets.size())
                                  : 0);
  if (job.job.megatron) job.batch.accumulation = job.job.accumulation = job.job.megatron->pipeline;
  const RankGroup first = rank_groups(job.job, ways_[way].parallel, spec_.cluster.count).front();
  TrainingJob own = job_of_rank(job.job, ways_[way].parallel, spec_.cluster.count, first.rank);
  own.steps = 2;  // the second has the optimizer's states throughout
  own.record_computes = true;
  return ways_[way].lowering->lower(own);
}

const JointSpace::Probe& JointSpace::probe(std::size_t way, std::size_t policy,
                                           std::int64_t micro) {
  if (const auto known = probes_.find({way, policy, micro}); known != probes_.end()) {
    return known->second;
  }
  Probe probe;
  const Program program = one_pass(way, policy, micro);
  for (const run::RequestedPeak& peak : run::requested_peaks(program)) {
    probe.requested = std::max(probe.requested, peak.bytes);
  }
  see_computes(program, [&](const Compute& compute) {
    if (is_product(compute)) probe.flops += compute.flops / static_cast<double>(micro);
    if (times_) probe.seconds += times_->seconds(compute);
  });
  return probes_.emplace(std::tuple(way, policy, micro), probe).first->second;
}

void JointSpace::bound_bytes(Point& point) {
  point.bytes_bounded = true;
  if (point.cut) return;               // the first stage may hold less than before
  std::int64_t first = 0, second = 0;  // the two smallest micro-batches of the way
  for (const Point& other : points_) {
    if (other.way != point.way || other.policy != point.policy || other.cut) continue;
    const std::int64_t micro = other.configuration.micro_batch;
    if (first == 0) {
      first = micro;
    } else if (second == 0) {
      second = micro;
    }
  }
  const std::int64_t micro = point.configuration.micro_batch;
  std::int64_t least = probe(point.way, point.policy, first).requested;
  if (micro > first && second > 0) {
    const std::int64_t more = probe(point.way, point.policy, second).requested;
    const std::int64_t each = std::max<std::int64_t>(0, more - least) / (second - first);
    least = std::max(least, more + (micro - second) * each);
  }
  point.least = std::max(point.least, least);
  point.too_large = !point.found && point.least > budget(point);
}

Option JointSpace::lower(const Point& point, RankJob job, std::int64_t passes,
                         std::optional<Find> find, bool timed) const {
  const Parallel parallel = ways_[point.way].parallel;
  Option option;
  option.spec = &spec_;
  option.parallel = parallel;
  option.job = std::move(job);
  TrainingJob shared = option.job.job;
  shared.accumulation = passes;
  shared.record_computes = timed;
  for (const RankGroup& group : rank_groups(shared, parallel, spec_.cluster.count)) {
    Gpu gpu;
    gpu.card = card_for(spec_, parallel, group.ranks.front());
    gpu.rank = group.rank;
    gpu.program = std::make_shared<const Program>(
        way(point).lowering->lower(job_of_rank(shared, parallel, spec_.cluster.count, group.rank)));
    if (find) {
      gpu.judgement = judge(*gpu.program, gpu.card, option.job.allocator, accuracy_, *find, stop_);
    }
    std::vector<int> ranks = group.ranks;
    if (alike(point)) {
      ranks.resize(static_cast<std::size_t>(spec_.cluster.count));
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    for (const int rank : ranks) {
      gpu.index = gpu.rank = rank;
      if (parallel == Parallel::independent) gpu.rank = 0;
      option.gpus.push_back(gpu);
    }
    if (alike(point)) break;
  }
  const auto worse = [](const Gpu& a, const Gpu& b) {
    return std::pair(a.judgement.verdict, a.judgement.needed) <
           std::pair(b.judgement.verdict, b.judgement.needed);
  };
  const auto worst = std::max_element(option.gpus.begin(), option.gpus.end(), worse);
  option.tightest = static_cast<std::size_t>(worst - option.gpus.begin());
  option.verdict = worst->judgement.verdict;
  std::string missing;
  if (timed) option.timing = time_of(option, missing);
  return option;
}

PassesRun JointSpace::passes_of(const Point& point) const {
  TrainingJob job = way(point).job.job;
  job.accumulation = point.configuration.accumulation;
  return passes_run(job);
}

void JointSpace::run_as(Point& point, std::int64_t blocks, bool needed, bool with_time) {
  const std::int64_t passes = point.configuration.accumulation;
  const std::int64_t most = needed ? passes_for_bytes_ : short_passes;
  PassesRun run = passes_of(point);
  if (alike(point)) run = {std::min(passes, most), 1};
  const std::int64_t some = run.some;
  const Find find = needed ? Find::all : Find::verdict;
  const Option option = lower(point, job_of(point, blocks), some, find, with_time && timed());
  Found found;
  found.configuration = point.configuration;
  found.verdict = option.verdict;
  const Judgement& judgement = option.worst_gpu().judgement;
  if (needed) {
    found.needed = judgement.needed;
    found.headroom = judgement.headroom();
  }
  point.measured = needed;
  point.timing = option.timing;
  if (point.timing && some < passes) {
    const Option shorter = lower(point, job_of(point, blocks), some - run.unit, {}, true);
    extend(*point.timing, *shorter.timing,
           static_cast<double>(passes - some) / static_cast<double>(run.unit));
  }
  if (point.timing) {
    found.step_seconds = point.timing->step_seconds;
    found.samples_per_second =
        static_cast<double>(samples_per_step(point)) / point.timing->step_seconds;
  }
  point.found = std::move(found);
}

void JointSpace::run(Point& point, bool needed) {
  if (point.found && (point.measured || !needed)) return;
  if (point.cut) {
    run_cut(point, needed);
    return;
  }
  if (policies_[point.policy].some_blocks && point.blocks == 0) {
    run_blocks(point, needed);
  } else {
    run_as(point, point.blocks, needed, true);
  }
}

std::int64_t JointSpace::lacks(const Point& point) const {
  const std::int64_t all = point.configuration.accumulation;
  const std::int64_t passes = alike(point) ? std::min(all, short_passes) : passes_of(point).some;
  const Option option = lower(point, job_of(point, point.blocks), passes, Find::verdict, false);
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  for (const Gpu& gpu : option.gpus) {
    run::RunLimits limits;
    limits.settings = option.job.allocator;
    limits.stop = stop_;
    const Judgement& judged = gpu.judgement;
    const std::int64_t capacity = run::least_capacity(*gpu.program, limits, true, judged.unlimited);
    const std::int64_t interval = judged.high - judged.unlimited.allocated_peak;
    most = std::max(most, capacity + gpu.card.most_outside() + interval - gpu.card.usable);
    if (alike(point)) break;
  }
  return most;
}

Point* JointSpace::without_recompute(const Point& point) {
  if (!timed() || policies_.front().kind != program::Recompute::none || point.policy == 0 ||
      point.cut) {
    return {};
  }
  for (Point& other : points_) {
    const bool same = other.way == point.way && other.policy == 0 && !other.cut &&
                      other.configuration.micro_batch == point.configuration.micro_batch &&
                      other.configuration.accumulation == point.configuration.accumulation;
    if (same) return &other;
  }
  return nullptr;
}

}  // namespace shardfit::search
