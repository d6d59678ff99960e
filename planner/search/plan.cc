#include "search/plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <tuple>

#include "base/format.h"
#include "search/batch.h"
#include "search/joint.h"
#include "search/more_gpus.h"
#include "search/sharing.h"
#include "search/unread.h"
#include "search/ways.h"

namespace shardfit::search {
namespace {

using spec::OptionSpec;
using spec::Parallel;

/// Shares of one another within which two step times are the same.
constexpr double tie = 0.01;

/// Of shared ways: where one trains with fewer data-parallel ranks and nothing keeps the global
/// batch, its step is over fewer samples.
double seconds_a_sample(const Option& option) {
  return option.timing->step_seconds / static_cast<double>(option.job.batch.global);
}

/// Another framework's program is taken only where none of the own does as well.
bool better(const Option& a, const Option& b) {
  if (a.verdict != b.verdict) return a.verdict < b.verdict;
  if (!a.timing || !b.timing || (a.foreign() && !b.foreign())) return false;
  return seconds_a_sample(a) < seconds_a_sample(b) * (1 - tie);
}

std::string short_by(const Option& option) {
  if (option.worst_gpu().judgement.needed == 0) return "by how much was not found";
  return format_bytes(Bytes(-option.worst_gpu().judgement.headroom())) + " short on GPU " +
         std::to_string(option.worst_gpu().index);
}

std::string why_not(const Option& other, const Option& chosen) {
  const bool splits = other.parallel == Parallel::independent;
  const std::string other_program =
      other.foreign() && !chosen.foreign() ? ", with Megatron-core's program" : "";
  if (other.verdict == Verdict::does_not_fit) return short_by(other);
  if (other.verdict > chosen.verdict) return other.reason;
  if (splits || chosen.parallel == Parallel::independent) {
    const double more = other.samples_per_second() / std::max(chosen.samples_per_second(), 1e-300);
    if (!other.timing || !chosen.timing)
      return splits ? "another question: no step gets shorter" : "";
    std::string line = format_number(more) + " times the samples a second, " +
                       format_number(other.timing->step_seconds / chosen.timing->step_seconds) +
                       " times the step";
    if (!splits) {
      line += "; its exchange of " + format_bytes(Bytes(other.timing->exchange_bytes)) + " takes " +
              format_seconds(Seconds(other.timing->exchange_seconds));
    }
    return line;
  }
  if (!other.timing || !chosen.timing)
    return "fits too; " + name_of(chosen.parallel) + " is simpler" + other_program;
  const double ratio = seconds_a_sample(other) / seconds_a_sample(chosen);
  if (other_program.empty() && ratio <= 1 + tie) {
    return "as fast; " + name_of(chosen.parallel) + " is simpler";
  }
  const bool same_batch = other.job.batch.global == chosen.job.batch.global;
  return format_number(ratio) + (same_batch ? " times the step" : " times as long a sample") +
         other_program;
}

Alternative alternative(const Option& other, const Option& chosen) {
  Alternative out;
  out.parallel = other.parallel;
  out.split = other.split;
  out.verdict = other.verdict;
  if (const Judgement& worst = other.worst_gpu().judgement; worst.needed > 0) {
    out.needed = worst.needed;
    out.headroom = worst.headroom();
  }
  out.timing = other.timing;
  out.samples_per_second = other.samples_per_second();
  out.global_batch = other.job.batch.global;
  out.because = why_not(other, chosen);
  return out;
}

/// A way in which the model's program does not run, such as one that calls a module whose
/// parameters are not gathered there.
Alternative does_not_run(const OptionSpec& option, const Way& way, const InputError& error) {
  Alternative out;
  out.parallel = way.parallel;
  out.applies = false;
  out.split = split_of(way.job.job, way.parallel, option.cluster.count);
  out.because = "the model's program does not run: " + error.diagnostics().front().message;
  return out;
}

/// Where none runs, the one that lacks least, of the job's own framework where there is such.
std::size_t closest(std::vector<Option>& tried, std::size_t best) {
  const auto rank = [](const Option& option) {
    return std::tuple(option.parallel == Parallel::independent, option.foreign(),
                      -option.worst_gpu().judgement.headroom());
  };
  for (Option& option : tried) measure(option);
  for (std::size_t i = 0; i < tried.size(); ++i) {
    if (rank(tried[i]) < rank(tried[best])) best = i;
  }
  return best;
}

/// A way that was tried: the better of two. `shared`: somebody who gives degrees asks for one job.
bool replaces(const Option& next, const Option& best, bool shared) {
  if (next.parallel != Parallel::independent) return better(next, best);
  if (shared) return false;
  const bool same = next.verdict == best.verdict;
  return next.verdict < best.verdict ||
         (same && best.timing &&
          next.samples_per_second() >= worth_splitting * best.samples_per_second());
}

/// Another framework's program is not taken for a job of this one; where it would be much faster,
/// that is said.
void warn_of_faster_program(Option& chosen, const std::vector<Option>& tried) {
  constexpr double worth_saying = 1.3;
  if (chosen.foreign() || chosen.verdict != Verdict::fits || !chosen.timing) return;
  const Option* fastest = nullptr;
  for (const Option& other : tried) {
    if (!other.foreign() || other.verdict != Verdict::fits || !other.timing) continue;
    if (!fastest || other.samples_per_second() > fastest->samples_per_second()) fastest = &other;
  }
  if (!fastest) return;
  const double ratio = fastest->samples_per_second() / chosen.samples_per_second();
  if (ratio < worth_saying) return;
  chosen.warnings.push_back("Megatron-core's program would complete " + format_number(ratio) +
                            " times the samples a second: --framework megatron --parallel " +
                            name_of(fastest->parallel));
}

/// The memory of programs that nobody asks about any more.
void drop_programs(Option& option) {
  for (Gpu& gpu : option.gpus) {
    gpu.program.reset();
    gpu.judgement.unlimited.block_units.reset();
    gpu.judgement.limited.block_units.reset();
  }
}

/// The best of the ways that are possible, the others beside it. Throws InputError where none runs.
Option choose(Ready ready, bool all_needs) {
  std::vector<Option> tried;
  std::optional<InputError> first;
  std::size_t best = 0;
  bool stopped = false;
  const spec::Degrees& degrees = ready.option->job.degrees;
  const bool shared = degrees.dp || degrees.fsdp || degrees.tp || degrees.pp;
  const bool any_zero1 =
      std::any_of(ready.possible.begin(), ready.possible.end(),
                  [](const Way& way) { return way.parallel == Parallel::zero1; });
  const auto any_fits = [&] {
    return std::any_of(tried.begin(), tried.end(),
                       [](const Option& one) { return one.verdict == Verdict::fits; });
  };
  for (Way& way : ready.possible) {
    try {
      tried.push_back(try_option(*ready.option, way.parallel, way.job, *way.lowering));
      tried.back().lowering = std::move(way.lowering);
      const std::size_t last = tried.size() - 1;
      if (last == 0) continue;
      const bool replaced = replaces(tried[last], tried[best], shared);
      Option& worse = tried[replaced ? best : last];
      if (replaced) best = last;
      const bool asked = all_needs || worse.verdict == Verdict::does_not_fit ||
                         (any_zero1 && worse.parallel == Parallel::fsdp2);
      if (!asked) drop_programs(worse);
    } catch (const Stopped&) {
      if (!any_fits()) throw;
      stopped = true;  // what is known is an answer
      break;
    } catch (const InputError& error) {
      ready.impossible.push_back(does_not_run(*ready.option, way, error));
      if (!first) first = error;
    }
  }
  const auto apart = [](const Option& one) { return one.parallel == Parallel::independent; };
  // Runs of their own do not answer somebody who asked for degrees.
  if (first && std::all_of(tried.begin(), tried.end(), apart) && (tried.empty() || shared))
    throw *first;
  const bool none = tried[best].verdict == Verdict::does_not_fit;
  if (none && !stopped && tried.size() > 1) best = closest(tried, best);
  Option chosen = std::move(tried[best]);
  if (stopped) {
    chosen.whole.stop = chosen.job.job.stop = nullptr;
    chosen.warnings.emplace_back("stopped before every way to share the job was tried");
  }
  measure(chosen);
  tried.erase(tried.begin() + static_cast<std::ptrdiff_t>(best));
  warn_of_faster_program(chosen, tried);
  for (Option& other : tried) {
    // Even shards may be the fix of uneven ones.
    const bool fix = chosen.parallel == Parallel::zero1 && other.parallel == Parallel::fsdp2;
    if (!stopped && (all_needs || fix || other.verdict == Verdict::does_not_fit)) {
      try {
        measure(other);
      } catch (const Stopped&) {
        stopped = true;
      }
    }
    chosen.others.push_back(alternative(other, chosen));
  }
  for (Alternative& cannot : ready.impossible) chosen.others.push_back(std::move(cannot));
  // The time of a step that cannot be run is no time.
  if (chosen.verdict == Verdict::does_not_fit) chosen.timing.reset();
  return chosen;
}

/// Ways in which the model does not run, whatever its batch, go to those that cannot be; all stay
/// where none runs. Pipelines, whose passes are theirs to choose, are left to the search.
void leave_out_what_does_not_run(Ready& ready) {
  std::vector<Alternative> fail;
  std::vector<bool> runs;
  for (const Way& way : ready.possible) {
    program::TrainingJob job = way.job.job;
    job.micro_batch = job.accumulation = job.steps = 1;
    runs.push_back(true);
    if (job.megatron) continue;
    try {
      way.lowering->lower(job_of_rank(job, way.parallel, ready.option->cluster.count, 0));
    } catch (const InputError& error) {
      fail.push_back(does_not_run(*ready.option, way, error));
      runs.back() = false;
    }
  }
  if (fail.empty() || fail.size() == ready.possible.size()) return;
  std::vector<Way> kept;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i]) kept.push_back(std::move(ready.possible[i]));
  }
  ready.possible = std::move(kept);
  std::move(fail.begin(), fail.end(), std::back_inserter(ready.impossible));
}

/// The same where configurations are searched: micro-batch, recompute and way together.
Option search_jointly(Ready ready, JointSearch& search) {
  leave_out_what_does_not_run(ready);
  Option chosen = search.run(*ready.option, std::move(ready.possible));
  for (Alternative& cannot : ready.impossible) chosen.others.push_back(std::move(cannot));
  if (chosen.verdict == Verdict::does_not_fit) chosen.timing.reset();
  return chosen;
}

/// Samples of a step are what the person wants trained, not the search's to choose: the shortest
/// step would be that of one sample.
void check_search(const spec::PlanSpec& plan, Diagnostics& faults) {
  const bool throughput = plan.objective && plan.objective->value == spec::Objective::throughput;
  const bool any = std::any_of(plan.options.begin(), plan.options.end(),
                               [&](const OptionSpec& one) { return is_searched(one, plan); });
  if (plan.search_budget && !any) {
    faults.error(plan.search_budget->where, "'budget' is given, but nothing is searched",
                 {"leave it out, or give micro-batch auto, recompute auto or an objective"});
  }
  for (const OptionSpec& option : plan.options) {
    const spec::JobSpec& job = option.job;
    if (!job.any_micro_batch || job.global_batch || throughput) continue;
    faults.error(*job.any_micro_batch, "micro-batch auto needs a global batch to keep",
                 {"give --global-batch, or --objective throughput for any batch"});
    return;
  }
}

void add_warnings(Option& option) {
  for (const Imbalance& one : option.imbalances) {
    option.warnings.push_back(imbalance_text(option, one));
  }
  option.warnings.insert(option.warnings.end(), option.job.warnings.begin(),
                         option.job.warnings.end());
  if (!option.accuracy.measured) {
    option.warnings.push_back(
        "no measured cases of this framework and task: the interval is the widest of all others");
  }
}

void add_rent(const spec::PriceSpec& prices, Option& option) {
  RentJob job;
  job.device = option.spec->cluster.device.name;
  job.gpus = option.spec->cluster.count;
  job.samples_per_step = option.samples_per_step();
  if (option.spec->job.samples) job.samples_an_epoch = option.spec->job.samples->value;
  if (option.timing) job.step_seconds = option.timing->step_seconds;
  option.rent = rent_of(prices, job);
  if (auto warning = future_prices(prices); !warning.empty()) option.warnings.push_back(warning);
  if (!option.rent) {
    option.warnings.push_back("the price file has no price for " + job.device);
  }
}

bool asks_for(const spec::PlanSpec& spec, spec::Hypothesis hypothesis) {
  return spec.hypothesis && spec.hypothesis->value == hypothesis;
}

/// Where several options have GPUs to share a job and nobody said how large a step's batch is, all
/// sides get the one that the most GPUs make of the micro-batch: runs of their own, too.
spec::PlanSpec with_equal_batches(const spec::PlanSpec& spec) {
  spec::PlanSpec equal = spec;
  std::int64_t least = spec::most_gpus, most = 1;
  for (const OptionSpec& option : spec.options) {
    if (option.job.global_batch || option.job.accumulation) return equal;
    if (option.job.any_micro_batch) return equal;
    least = std::min(least, option.cluster.count);
    most = std::max(most, option.cluster.count);
  }
  const bool alone = most == 1 || spec.options.size() == 1;
  if (least == most && alone) return equal;
  for (OptionSpec& option : equal.options) {
    const std::int64_t micro = option.job.micro_batch ? option.job.micro_batch->value : 1;
    const std::string because = "not given; the same on all sides: a micro-batch on each of " +
                                std::to_string(most) + " GPUs";
    option.job.global_batch =
        spec::Setting<std::int64_t>{checked_multiply(micro, most), {}, because};
    option.job.assumptions.push_back(
        {"global-batch", std::to_string(option.job.global_batch->value), because});
  }
  return equal;
}

/// Another value was taken for a key that nobody gave.
void say_instead(OptionSpec& option, const spec::Assumption& now) {
  for (spec::Assumption& assumption : option.job.assumptions) {
    if (assumption.key == now.key) assumption = now;
  }
}

/// A length nobody asked for is no longer than the model can run.
void shorten_assumed_sequences(spec::PlanSpec& plan, Lowerings& lowerings) {
  const std::vector<std::string> known = modelled_frameworks();
  for (OptionSpec& option : plan.options) {
    spec::Setting<std::int64_t>& sequence = option.job.sequence;
    const bool modelled =
        std::find(known.begin(), known.end(), framework_of(option)) != known.end();
    if (!sequence.assumed() || !modelled) continue;
    const auto longest = lowerings.find(option).longest_sequence();
    if (!longest || *longest >= sequence.value) continue;
    sequence.value = *longest;
    sequence.because = "not given; all positions the model has";
    say_instead(option, {"sequence", std::to_string(*longest), sequence.because});
  }
}

/// A network whose batch is no text is trained by a plain loop where nobody names a framework.
void assume_plain_loops(spec::PlanSpec& plan, Lowerings& lowerings) {
  for (OptionSpec& option : plan.options) {
    spec::Setting<spec::Framework>& framework = option.job.framework;
    if (!framework.assumed()) continue;
    const spec::ModelSpec& model = lowerings.model(option);
    const auto family = spec::read_family_of(model, {framework_of(option)});
    if ((!family->own_batch && !model.graph) || family->asks_for_batch) continue;
    framework.value = spec::Framework::plain_pytorch;
    framework.because = "not given; the network reads a batch of its own, not tokens";
    say_instead(option, {"framework", framework_of(option), framework.because});
  }
}

/// Of the whole model, where a rank's program holds a part of it.
std::int64_t parameters_of(const Option& option) {
  const spec::Split& split = option.split;
  if (split.tensor * split.pipeline * split.expert == 1) return option.program().parameters_total;
  return program::Lowering(option.lowering->model(), "plain-pytorch").parameter_count();
}

/// Words of the job that change nothing: of a network whose batch is no text.
void warn_of_unread(Option& option) {
  const spec::JobSpec& job = option.spec->job;
  if (job.sequence.where.known() && !reads_sequence(option)) {
    option.warnings.push_back("sequence " + std::to_string(job.sequence.value) +
                              " changes nothing: this network reads no sequence");
  }
}

/// What follows a search: changes that would make the job fit, fixes, weights of assumptions, all
/// within its part of the budget.
void add_what_else(Option& option, const PlanSettings& settings, bool effects,
                   const StopCheck* stop) {
  option.job.job.stop = option.whole.stop = stop;
  if (settings.changes && option.verdict != Verdict::fits) {
    option.changes = find_changes(option, *option.lowering);
  }
  if (settings.changes) find_fixes(option);
  if (effects) {
    option.assumptions = find_effects(option, *option.lowering);
  } else {
    for (const auto& assumption : option.job.assumptions) {
      option.assumptions.push_back({assumption, 0, 0});
    }
  }
  option.job.job.stop = option.whole.stop = nullptr;
  const bool open = option.verdict != Verdict::fits || !option.imbalances.empty();
  if (settings.changes && open && stop && stop->why() != StopCheck::Why::no) {
    option.warnings.emplace_back("stopped before every change that might help was simulated");
  }
}

}  // namespace

Plan make_plan(const spec::PlanSpec& asked, const PlanSettings& settings) {
  const double begun = cpu_seconds();
  Plan plan;
  Diagnostics faults;
  Lowerings lowerings;
  spec::PlanSpec filled = settings.equal_batches ? with_equal_batches(asked) : asked;
  assume_plain_loops(filled, lowerings);
  shorten_assumed_sequences(filled, lowerings);
  plan.spec = std::make_shared<const spec::PlanSpec>(std::move(filled));
  std::vector<Ready> ready;
  for (const OptionSpec& option : plan.spec->options) {
    ready.push_back(prepare(option, lowerings, faults));
    for (Way& way : ready.back().possible) {
      way.job.job.record_computes = way.job.job.record_computes || settings.computes;
    }
  }
  check_search(*plan.spec, faults);
  refuse_unused(ready, faults);
  faults.throw_if_any();
  const SearchControls unwatched;
  SearchControls controls = settings.search ? *settings.search : unwatched;
  if (plan.spec->search_budget) controls.budget_seconds = plan.spec->search_budget->value;
  const auto searched =
      std::count_if(plan.spec->options.begin(), plan.spec->options.end(),
                    [&](const OptionSpec& option) { return is_searched(option, *plan.spec); });
  JointSearch search(*plan.spec, controls, static_cast<std::size_t>(searched));
  const bool bounded = searched == 0 && controls.budget_seconds;
  const StopCheck plain(
      bounded ? begun + *controls.budget_seconds : std::numeric_limits<double>::infinity(),
      controls.stop);
  for (Ready& next : ready) {
    const OptionSpec& spec = *next.option;
    if (plan.stopped != StopCheck::Why::no) {
      plan.unfinished.push_back(spec.name);
      continue;
    }
    for (Way& way : next.possible) way.job.job.stop = settings.search ? &plain : nullptr;
    try {
      const bool joint = is_searched(spec, *plan.spec);
      if (joint) search.begin_option();
      Option option = joint ? search_jointly(std::move(next), search)
                            : choose(std::move(next), settings.all_needs);
      option.parameters = parameters_of(option);
      add_what_else(option, settings, settings.effects && plan.options.empty(),
                    joint             ? &search.stop()
                    : settings.search ? &plain
                                      : nullptr);

      if (asks_for(*plan.spec, spec::Hypothesis::larger_batch)) {
        option.largest_micro_batch = find_largest_micro_batch(option, *option.lowering);
      }
      plan.options.push_back(std::move(option));
    } catch (const Stopped&) {
      plan.stopped = plain.why();
      plan.unfinished.push_back(spec.name);
      continue;
    } catch (const OverflowError&) {
      const spec::JobSpec& job = spec.job;
      Location where = job.model.where;
      if (job.sequence.where.known()) where = job.sequence.where;
      if (job.micro_batch && job.micro_batch->where.known()) where = job.micro_batch->where;
      throw InputError(where, "this model and batch need more than 8 EiB: a number must be wrong");
    }
    add_warnings(plan.options.back());
    warn_of_unread(plan.options.back());
    warn_of_unused(plan.options.back());
    if (plan.spec->prices) add_rent(*plan.spec->prices, plan.options.back());
  }
  if (plan.options.empty()) return plan;
  const bool none = std::all_of(plan.options.begin(), plan.options.end(), [](const Option& option) {
    return option.verdict == Verdict::does_not_fit;
  });
  if (settings.changes && none) {  // else an option is the answer
    const StopCheck stop(controls.budget_seconds ? begun + *controls.budget_seconds
                                                 : std::numeric_limits<double>::infinity(),
                         controls.stop);
    for (Option& option : plan.options) {
      MoreGpus more = find_more_gpus(option, lowerings, stop);
      if (more.change) {
        option.changes.push_back(*std::move(more.change));
      } else if (more.looked_to > 0) {
        option.warnings.push_back(more.words(option));
      }
    }
  }
  warn_of_unused_profiles(plan);
  plan.parameters = plan.options.front().parameters;
  compare(plan);
  return plan;
}

}  // namespace shardfit::search
