// Which option to take: the hypothesis answered, what is not equal on all sides said, one
// recommended.

#include <algorithm>
#include <functional>

#include "base/format.h"
#include "search/joint.h"
#include "search/plan.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

using spec::Parallel;

std::string option_name(const Option& option) {
  const std::string parallel = name_of(option.parallel, option.split);
  return option.spec->cluster.count == 1 ? option.spec->name
                                         : option.spec->name + " (" + parallel + ")";
}

std::string step_of(const Option& option) {
  return format_seconds(Seconds{option.timing->step_seconds});
}

/// "sequence 2048 and 4096" where the options differ.
void find_difference(const Plan& plan, const std::string& key,
                     const std::function<std::string(const Option&)>& value,
                     std::vector<std::string>& differences) {
  std::vector<std::string> values;
  for (const Option& option : plan.options) {
    const std::string text = value(option);
    if (std::find(values.begin(), values.end(), text) == values.end()) values.push_back(text);
  }
  if (values.size() > 1) differences.push_back(key + " " + join(values, " and "));
}

std::vector<std::string> find_differences(const Plan& plan) {
  std::vector<std::string> found;
  find_difference(
      plan, "model", [](const Option& o) { return o.spec->job.model.value; }, found);
  find_difference(
      plan, "task",
      [](const Option& o) {
        return spec::task_names()[static_cast<std::size_t>(o.spec->job.task.value)];
      },
      found);
  find_difference(
      plan, "precision",
      [](const Option& o) {
        return spec::precision_names()[static_cast<std::size_t>(o.spec->job.precision.value)];
      },
      found);
  find_difference(
      plan, "global batch", [](const Option& o) { return format_count(o.job.batch.global); },
      found);
  find_difference(
      plan, "sequence", [](const Option& o) { return format_count(o.spec->job.sequence.value); },
      found);
  find_difference(
      plan, "samples",
      [](const Option& o) {
        return o.spec->job.samples ? format_count(o.spec->job.samples->value) : "not given";
      },
      found);
  return found;
}

bool any_undecided(const Plan& plan) {
  return !plan.unfinished.empty() ||
         std::any_of(plan.options.begin(), plan.options.end(),
                     [](const Option& option) { return option.undecided(); });
}

/// "h200 does not", "h200 was not decided within the budget".
std::string does_not(const Option& option, const char* words) {
  if (!option.undecided()) return option_name(option) + words;
  return option_name(option) + " was not decided " + option.search->stop_words();
}

bool runs(const Option& option) { return option.verdict != Verdict::does_not_fit; }

/// The option with the fewest GPUs, the first of those.
const Option& smallest(const Plan& plan) {
  const Option* least = &plan.options.front();
  for (const Option& option : plan.options) {
    if (option.spec->cluster.count < least->spec->cluster.count) least = &option;
  }
  return *least;
}

/// One option was asked about: there is no other to compare it with.
bool alone(const Plan& plan) { return plan.spec->options.size() == 1; }

std::string answer_make_possible(const Plan& plan) {
  const Option& base = smallest(plan);
  if (runs(base) && alone(plan)) {
    return "make-possible: yes, " + option_name(base) + " runs it (" + verdict_text(base.verdict) +
           "); there is no other option to compare it with";
  }
  if (runs(base)) {
    return "make-possible: not needed, " + option_name(base) + " runs it (" +
           verdict_text(base.verdict) + ")";
  }
  for (const Option& option : plan.options) {
    if (!runs(option)) continue;
    return "make-possible: yes, " + option_name(option) + " runs it (" +
           verdict_text(option.verdict) + "), " + does_not(base, " does not");
  }
  if (any_undecided(plan)) return "make-possible: not decided, no option is known to run it";
  return "make-possible: no, none of the options runs it";
}

/// Of independent runs, whose step is one card's.
std::string runs_apart(const Option& option) {
  return ", each of the " + format_count(option.runs()) + " runs on a card of its own";
}

/// Where a search was for something else, its options do not have the shortest step there is.
std::string searched_for(const Plan& plan) {
  const auto& objective = plan.spec->objective;
  if (!objective || objective->value == spec::Objective::step) return "";
  return "; the search was for " +
         spec::objective_names()[static_cast<std::size_t>(objective->value)] +
         ": --objective step finds shorter ones where there are such";
}

std::string answer_shorter_step(const Plan& plan) {
  const Option& base = smallest(plan);
  const Option* best = nullptr;
  for (const Option& option : plan.options) {
    if (!runs(option) || &option == &base || !option.timing) continue;
    if (!best || option.timing->step_seconds < best->timing->step_seconds) best = &option;
  }
  if (!runs(base)) {
    return "shorter-step: " + does_not(base, " does not run it") +
           ", so there is no step to shorten" +
           (best ? "; " + option_name(*best) + " takes " + step_of(*best) : "");
  }
  if (alone(plan)) {
    return "shorter-step: there is one option and none to compare it with; " + option_name(base) +
           (base.timing ? " takes " + step_of(base) + " a step"
                        : ", whose step's time is not known");
  }
  if (!best || !base.timing) return "shorter-step: not known, a step's time is missing";
  const double ratio = base.timing->step_seconds / best->timing->step_seconds;
  return std::string("shorter-step: ") + (ratio > 1 ? "yes, " : "no, ") + option_name(*best) +
         " takes " + step_of(*best) + " a step, " + option_name(base) + " " + step_of(base) + " (" +
         format_number(ratio) + " times as fast)" + (best->runs() > 1 ? runs_apart(*best) : "") +
         searched_for(plan);
}

std::string answer_larger_batch(const Plan& plan) {
  std::string text = "larger-batch: largest micro-batch that fits, one a step: ";
  const Option* kept = nullptr;  // a global batch of the job that some of them do not divide
  bool first = true;
  for (const Option& option : plan.options) {
    if (!first) text += "; ";
    first = false;
    const std::int64_t micro = option.largest_micro_batch;
    const std::int64_t ranks =
        option.job.batch.global / (option.job.batch.micro * option.job.batch.accumulation);
    text += option_name(option) + " ";
    text += micro == 0 ? (option.undecided() ? "not decided" : "none") : format_count(micro);
    if (micro > 0 && ranks * option.runs() > 1) {
      text += " on each of " + format_count(ranks * option.runs()) + ", " +
              format_count(micro * ranks * option.runs()) + " of all";
    }
    const auto& global = option.spec->job.global_batch;
    const bool asked = global && global->where.known();
    if (micro > 0 && asked && global->value % (micro * ranks) != 0) kept = &option;
  }
  if (kept) {
    text += "; the global batch of " + format_count(kept->job.batch.global) +
            " is not kept here: shardfit batch finds the largest micro-batch that divides it";
  }
  return text;
}

/// What is to be small: rent of an epoch or a sample, else time a sample; empty where not known.
std::optional<double> rent_an_epoch(const Option& option) {
  if (!option.rent || !option.rent->epoch) return {};
  const Money& epoch = option.rent->epoch->cost;
  return (epoch.low + epoch.high) / 2;
}
std::optional<double> rent_a_sample(const Option& option) {
  if (!option.rent || !option.rent->step) return {};
  const Money& step = *option.rent->step;
  return (step.low + step.high) / 2 / static_cast<double>(option.samples_per_step());
}
std::optional<double> seconds_a_sample(const Option& option) {
  if (!option.timing) return {};
  return 1 / option.samples_per_second();
}
std::optional<double> step_seconds(const Option& option) {
  if (!option.timing) return {};
  return option.timing->step_seconds;
}
std::optional<double> gpus(const Option& option) {
  return static_cast<double>(option.spec->cluster.count);
}

std::optional<double> needed(const Option& option) {
  return static_cast<double>(option.worst_gpu().judgement.needed);
}

struct Measure {
  std::optional<double> (*value)(const Option&);
  std::string says;
};

Measure measure_of(const spec::PlanSpec& spec) {
  if (spec.hypothesis && spec.hypothesis->value == spec::Hypothesis::make_possible) {
    return {gpus, "the fewest GPUs that run it"};
  }
  if (spec.hypothesis && spec.hypothesis->value == spec::Hypothesis::shorter_step) {
    return {step_seconds, "the shortest step"};
  }
  if (spec.objective && spec.objective->value == spec::Objective::memory) {
    return {needed, "the smallest memory"};
  }
  // Options agree in samples where they are weighed; an epoch pays for setting up, too.
  const bool epoch = spec.prices && spec.options.front().job.samples;
  if (epoch) return {rent_an_epoch, "the lowest rent of an epoch"};
  if (spec.prices) return {rent_a_sample, "the lowest rent a sample"};
  return {seconds_a_sample, "the most samples a second; rent is not weighed without --prices"};
}

std::string value_text(const Measure& measure, const Option& option) {
  if (measure.value == gpus) return "";
  if (measure.value == needed) {
    return format_bytes(Bytes(option.worst_gpu().judgement.needed)) + " needed";
  }
  if (measure.value == rent_an_epoch) {
    const Money& epoch = option.rent->epoch->cost;
    return format_number(epoch.low) + " to " + format_number(epoch.high) + " " +
           option.rent->currency;
  }
  if (measure.value == rent_a_sample) {
    const auto samples = static_cast<double>(option.samples_per_step());
    return format_number(option.rent->step->low / samples * 1000) + " to " +
           format_number(option.rent->step->high / samples * 1000) + " " + option.rent->currency +
           " per 1,000 samples";
  }
  if (measure.value == step_seconds) return step_of(option) + " a step";
  return format_number(option.samples_per_second()) + " samples a second";
}

/// "h200 and b200 were not decided within the budget"; "" where all are.
std::string what_is_open(const Plan& plan) {
  std::vector<std::string> open;
  const char* words = stop_words(plan.stopped == StopCheck::Why::budget);
  for (const Option& option : plan.options) {
    if (!option.undecided()) continue;
    open.push_back(option.spec->name);
    words = option.search->stop_words();
  }
  open.insert(open.end(), plan.unfinished.begin(), plan.unfinished.end());
  if (open.empty()) return "";
  return join(open, " and ") + (open.size() == 1 ? " was " : " were ") + "not decided " + words;
}

void recommend(Plan& plan) {
  Verdict best = Verdict::does_not_fit;
  for (const Option& option : plan.options) best = std::min(best, option.verdict);
  if (best == Verdict::does_not_fit) {
    const std::string open = what_is_open(plan);
    plan.because = open.empty() ? "no option fits" : "none yet: " + open;
    return;
  }
  if (!plan.differences.empty()) {
    plan.because = "none: the options differ in " + join(plan.differences, "; ") +
                   ", so they cannot be weighed against each other";
    return;
  }
  const Measure measure = measure_of(*plan.spec);
  bool all_known = true;
  for (std::size_t i = 0; i < plan.options.size(); ++i) {
    const Option& option = plan.options[i];
    if (option.verdict != best) continue;
    all_known = all_known && measure.value(option).has_value();
    const bool lower = plan.recommended && all_known &&
                       *measure.value(option) < *measure.value(plan.options[*plan.recommended]);
    if (!plan.recommended || lower) plan.recommended = i;
  }
  const Option& chosen = plan.options[*plan.recommended];
  plan.because =
      std::string(best == Verdict::fits ? "it fits: " : "it runs, tightly: ") + chosen.reason;
  if (plan.options.size() == 1) return;
  if (!all_known) {
    plan.because += "; the first of the options with this verdict (speed or price not known)";
    return;
  }
  const std::string value = value_text(measure, chosen);
  plan.because += "; " + measure.says + (value.empty() ? "" : ": " + value);
}

}  // namespace

void compare(Plan& plan) {
  if (plan.options.size() > 1) plan.differences = find_differences(plan);
  if (plan.spec->hypothesis) {
    switch (plan.spec->hypothesis->value) {
      case spec::Hypothesis::make_possible:
        plan.answer = answer_make_possible(plan);
        break;
      case spec::Hypothesis::shorter_step:
        plan.answer = answer_shorter_step(plan);
        break;
      case spec::Hypothesis::larger_batch:
        plan.answer = answer_larger_batch(plan);
        break;
    }
  }
  recommend(plan);
  const std::string open = what_is_open(plan);
  if (plan.recommended && !open.empty()) plan.because += "; " + open;
}

}  // namespace shardfit::search
