#include "search/ways.h"

#include <algorithm>

#include "base/format.h"
#include "search/data_parallel.h"
#include "search/experts.h"
#include "search/long_steps.h"
#include "search/nearest_degree.h"
#include "search/sharing.h"
#include "search/stage_cut.h"

namespace shardfit::search {
namespace {

using program::MegatronJob;
using program::PipelineSchedule;
using spec::OptionSpec;
using spec::Parallel;

/// Up to so many GPUs every pair of a tensor and a pipeline degree is tried.
constexpr std::int64_t most_combined = 8;

/// A way that may be tried. Degrees stand where several of one strategy are.
struct Trial {
  Parallel parallel = Parallel::none;
  std::optional<std::int64_t> tensor, pipeline;
};

bool has_several(const std::optional<spec::Setting<std::int64_t>>& degree) {
  return degree && degree->value > 1;
}
bool splits_model(const spec::Degrees& degrees) {
  return has_several(degrees.tp) || has_several(degrees.pp);
}
bool splits_model(Parallel parallel) {
  return parallel == Parallel::tensor || parallel == Parallel::pipeline;
}

bool shards(Parallel parallel) {
  constexpr Parallel all[] = {Parallel::zero1, Parallel::zero2, Parallel::zero3, Parallel::fsdp1,
                              Parallel::fsdp2};
  return std::find(std::begin(all), std::end(all), parallel) != std::end(all);
}

/// Every split of that many GPUs that has tensor or pipeline ranks.
std::vector<Trial> all_splits(std::int64_t gpus) {
  std::vector<Trial> trials;
  if (gpus == 2 || gpus > most_combined) {
    return {{Parallel::tensor, {}, {}}, {Parallel::pipeline, {}, {}}};
  }
  for (std::int64_t tensor = 1; tensor <= gpus; ++tensor) {
    for (std::int64_t pipeline = 1; tensor * pipeline <= gpus; ++pipeline) {
      if (tensor * pipeline == 1 || gpus % (tensor * pipeline) != 0) continue;
      trials.push_back({tensor > 1 ? Parallel::tensor : Parallel::pipeline, tensor, pipeline});
    }
  }
  return trials;
}

/// What is tried where nobody names a strategy, simplest first.
std::vector<Trial> automatic(const OptionSpec& option, const Profile& profile) {
  if (option.cluster.count == 1) return {{Parallel::none, {}, {}}};
  const spec::Degrees& given = option.job.degrees;
  std::vector<Trial> trials;
  const auto add = [&](Parallel parallel) { trials.push_back({parallel, {}, {}}); };
  if (splits_model(given)) {  // then it is split so in every way
    add(has_several(given.tp) ? Parallel::tensor : Parallel::pipeline);
    if (profile.framework == "megatron") add(Parallel::zero1);
  } else {
    for (const Parallel parallel : profile.parallel) {
      if (splits_model(parallel) || (has_several(given.fsdp) && !shards(parallel))) continue;
      add(parallel);
    }
    const bool apart = given.dp || given.fsdp || given.tp || given.pp || given.cp;
    const auto splits =
        apart ? std::vector<Trial>{{Parallel::tensor, {}, {}}, {Parallel::pipeline, {}, {}}}
              : all_splits(option.cluster.count);
    trials.insert(trials.end(), splits.begin(), splits.end());
  }
  add(Parallel::independent);
  return trials;
}

std::vector<Trial> trials_of(const OptionSpec& option, const Profile& profile,
                             Diagnostics& faults) {
  const spec::Setting<Parallel>& asked = option.job.parallel;
  if (asked.value == Parallel::automatic) return automatic(option, profile);
  if (asked.value == Parallel::independent) return {{asked.value, {}, {}}};
  if (asked.value == Parallel::none) {
    if (option.cluster.count == 1) return {{asked.value, {}, {}}};
    faults.error(asked.where, "parallel none leaves all GPUs but one idle",
                 {"give --on " + option.cluster.device.name + ", or parallel independent"});
    return {};
  }
  std::vector<Parallel> known = profile.parallel;
  known.insert(known.end(), profile.on_request.begin(), profile.on_request.end());
  if (splits_model(asked.value) ||
      std::find(known.begin(), known.end(), asked.value) != known.end()) {
    return {{asked.value, {}, {}}};
  }
  std::vector<std::string> names;
  for (const Parallel parallel : known) names.push_back(name_of(parallel));
  for (const Parallel more : {Parallel::tensor, Parallel::pipeline}) {
    if (std::find(known.begin(), known.end(), more) == known.end()) names.push_back(name_of(more));
  }
  names.insert(names.end(), {"none", "independent"});
  faults.error(
      asked.where,
      "parallel " + name_of(asked.value) + " is not modelled for framework " + profile.framework,
      {"expected one of: " + join(names)});
  return {};
}

/// Where a degree was given, else where the strategy or the GPUs were.
Location where_of(const std::string& key, const OptionSpec& option) {
  const spec::JobSpec& job = option.job;
  const std::optional<spec::Setting<std::int64_t>>* degree = nullptr;
  if (key == "tp") degree = &job.degrees.tp;
  if (key == "pp") degree = &job.degrees.pp;
  if (key == "dp") degree = &job.degrees.dp;
  if (key == "ep") degree = &job.degrees.ep;
  if (degree && *degree) return (*degree)->where;
  if (key == "stage_layers" && job.stage_layers) return job.stage_layers->where;
  if ((key == "virtual_stages" || key == "micro_batches") && job.schedule) {
    return job.schedule->where;
  }
  const Location where = job.parallel.where;
  return where.known() ? where : option.cluster.where;
}

void schedule(const OptionSpec& option, MegatronJob& megatron, RankJob& job, Diagnostics& faults) {
  if (!option.job.schedule || megatron.pipeline == 1) return;
  using spec::Schedule;
  const spec::Setting<Schedule>& asked = *option.job.schedule;
  switch (asked.value) {
    case Schedule::one_f_one_b:
      return;
    case Schedule::gpipe:
      megatron.schedule = PipelineSchedule::gpipe;
      job.warnings.push_back("Megatron-core has no gpipe: its own program with that order");
      return;
    case Schedule::interleaved_1f1b:
      megatron.virtual_stages = 2;
      job.assumptions.push_back({"virtual-stages", "2", "of an interleaved pipeline, the least"});
      return;
    default:
      faults.error(asked.where,
                   "schedule " + spec::schedule_names()[static_cast<std::size_t>(asked.value)] +
                       " is not modelled yet",
                   {"expected one of: 1f1b, gpipe, interleaved-1f1b"});
  }
}

/// In the place of layers of stages that cannot be.
std::string nearest_layers(const MegatronJob& megatron, std::int64_t layers) {
  if (megatron.virtual_stages > 1) return cut_words(even_cut(layers, megatron.pipeline));
  return cut_words(nearest_cut(megatron.stage_layers, layers, megatron.pipeline));
}

/// The degrees of a Megatron job, checked against the model.
void set_megatron(const OptionSpec& option, Parallel parallel, const spec::Split& split,
                  const program::Lowering& lowering, RankJob& job, Diagnostics& faults) {
  MegatronJob megatron;
  const bool alone = parallel == Parallel::none || parallel == Parallel::independent;
  if (!alone) {
    megatron.tensor = split.tensor;
    megatron.pipeline = split.pipeline;
    megatron.data = split.data;
    if (option.job.degrees.ep) megatron.expert = option.job.degrees.ep->value;
    megatron.distributed_optimizer = parallel == Parallel::zero1;
    if (option.job.sequence_parallel) {
      megatron.sequence_parallel = option.job.sequence_parallel->value;
    }
    if (option.job.stage_layers) megatron.stage_layers = option.job.stage_layers->value;
    schedule(option, megatron, job, faults);
    const std::int64_t layers = lowering.pipeline_layers();
    const bool divides = layers % std::max<std::int64_t>(1, megatron.pipeline) == 0;
    if (megatron.virtual_stages > 1 && divides &&
        megatron.stage_layers == even_cut(layers, megatron.pipeline)) {
      megatron.stage_layers.clear();  // what several chunks take anyway
    }
    if (!divides && !option.job.stage_layers && megatron.virtual_stages == 1 &&
        layers > megatron.pipeline) {
      megatron.stage_layers = even_cut(layers, megatron.pipeline);
      job.assumptions.push_back(
          {"stage-layers", cut_words(megatron.stage_layers),
           "not given; " + std::to_string(layers) +
               " layers do not divide by the stages, so Megatron-core must be "
               "told (pipeline_model_parallel_layout " +
               layout_words(megatron.stage_layers) + ")"});
    }
  }
  job.job.megatron = megatron;
  assume_experts(lowering, job);
  const bool many = job.batch.accumulation > program::most_passes && !option.job.any_micro_batch;
  if (many && holds_all_passes(job.job)) {
    faults.error(option.job.schedule->where,
                 "gpipe with " + format_count(job.batch.accumulation) +
                     " micro-batches a step, all held at a time, is not modelled",
                 {"expected at most " + format_count(program::most_passes) +
                  ": give a larger micro-batch, or --schedule 1f1b"});
  }
  for (const program::DegreeFault& fault : lowering.check(job.job)) {
    std::string nearest =
        std::to_string(nearest_degree(fault, job.job, option.cluster.count, lowering));
    if (fault.key == "stage_layers") nearest = nearest_layers(megatron, lowering.pipeline_layers());
    faults.error(where_of(fault.key, option), fault.message,
                 {"the nearest that can be: " + nearest});
  }
}

/// The same of torchtitan's tensor ranks.
void set_titan_tensor(const OptionSpec& option, const spec::Split& split,
                      const program::Lowering& lowering, RankJob& job, Diagnostics& faults) {
  job.job.titan->tensor = split.tensor;
  job.job.titan->data = split.data;
  // Without fully_shard nothing is cast (torchtitan/distributed/utils.py, maybe_enable_amp).
  if (split.data == 1 && job.job.parameters == DType::bf16) job.job.autocast.reset();
  if (option.job.sequence_parallel) {
    job.job.titan->sequence_parallel = option.job.sequence_parallel->value;
  }
  for (const program::DegreeFault& fault : lowering.check(job.job)) {
    faults.error(where_of(fault.key, option), fault.message,
                 {"the nearest that can be: " +
                  std::to_string(nearest_degree(fault, job.job, option.cluster.count, lowering))});
  }
}

/// Whether the framework's own program splits the model: what it has on request only where ranks of
/// that kind were asked for, and torchtitan's pipelines are not planned yet.
bool splits_by_itself(const Profile& profile, const Trial& trial, const OptionSpec& asked) {
  const auto lists = [&](const std::vector<Parallel>& list) {
    return std::find(list.begin(), list.end(), trial.parallel) != list.end();
  };
  if (lists(profile.parallel)) return true;
  const bool requested =
      asked.job.parallel.value == trial.parallel || has_several(asked.job.degrees.tp);
  return requested && lists(profile.on_request) && !has_several(asked.job.degrees.pp);
}

using Degree = std::optional<spec::Setting<std::int64_t>>;

void refuse(const Degree& degree, const char* what, const std::string& note, Diagnostics& faults) {
  if (has_several(degree)) faults.error(degree->where, what, {note});
}

/// Degrees that no program has: independent runs would hide them.
void refuse_unmodelled(const spec::Degrees& given, bool megatron, Diagnostics& faults) {
  refuse(given.cp, "context parallelism is not modelled yet", "give --cp 1, or leave it out",
         faults);
  if (megatron) return;
  refuse(given.ep, "expert parallelism is modelled for Megatron-core alone",
         "give --framework megatron, or leave --ep out: then all ranks hold all experts, and none "
         "works more because of the tokens that go to its own",
         faults);
}

/// Degrees that the strategy has not; `megatron`: it splits the model.
void refuse_degrees(const OptionSpec& option, Parallel parallel, bool megatron,
                    Diagnostics& faults) {
  const spec::Degrees& degrees = option.job.degrees;
  if (!shards(parallel)) {
    refuse(degrees.fsdp, "this strategy shards nothing among GPUs",
           "give --dp, or --parallel fsdp2", faults);
  } else if (has_several(degrees.dp)) {
    refuse(degrees.fsdp, "replicas of sharded groups (dp beside fsdp) are not modelled yet",
           "give one of the two", faults);
  }
  if (megatron) return;
  const std::string note = "give --parallel tensor or pipeline, or --framework megatron";
  refuse(degrees.tp, "this strategy splits no layer among GPUs", note, faults);
  refuse(degrees.pp, "this strategy has no pipeline", note, faults);
}

/// Whether the framework has a form of the model of its own that is modelled.
bool has_own_form(const spec::ModelSpec& model, const std::string& framework) {
  return std::any_of(model.framework_families.begin(), model.framework_families.end(),
                     [&](const auto& form) { return form.first == framework; });
}

/// Where micro-batches are searched, the job at one of them that can be counted: the smallest, or
/// all samples of a step in one pass.
std::optional<RankJob> job_of_option(const OptionSpec& option, std::int64_t ranks,
                                     const program::Lowering& lowering, Diagnostics& faults) {
  if (!option.job.any_micro_batch) return rank_job(option, ranks, lowering, faults);
  OptionSpec one = option;
  const auto& global = option.job.global_batch;
  if (global && global->value % ranks == 0 && !option.job.accumulation) {
    one.job.micro_batch = spec::Setting<std::int64_t>{1, {}, "searched"};
  }
  auto job = rank_job(one, ranks, lowering, faults);
  if (!job) return job;
  std::erase_if(job->assumptions, [](const spec::Assumption& assumption) {
    return assumption.key == "micro-batch" || assumption.key == "accumulation";
  });
  return job;
}

/// A strategy that splits the model, and degrees that leave one part.
void refuse_no_split(const OptionSpec& option, Parallel parallel, const Location& where,
                     Diagnostics& faults) {
  const bool tensor = parallel == Parallel::tensor;
  const Degree& own = tensor ? option.job.degrees.tp : option.job.degrees.pp;
  const std::int64_t gpus = option.cluster.count;
  std::int64_t least = 2;
  while (gpus % least != 0) ++least;
  if (own) {
    faults.error(own->where,
                 tensor ? "one tensor rank splits no layer" : "one stage is no pipeline",
                 {"the nearest that divides the number of GPUs: " + std::to_string(least)});
    return;
  }
  faults.error(where, "data parallelism takes all GPUs: none is left to split the model",
               {gpus == least ? "leave --dp out"
                              : "give --dp " + std::to_string(gpus / least) + ", or leave it out"});
}

/// One trial as a job. Nothing where it cannot be: then faults say why.
std::optional<Way> way_of(const OptionSpec& asked, const Trial& trial, Lowerings& lowerings,
                          Diagnostics& faults) {
  OptionSpec option = asked;
  const auto set = [](auto& degree, std::optional<std::int64_t> value) {
    if (value) degree = spec::Setting<std::int64_t>{*value, {}, "tried"};
  };
  set(option.job.degrees.tp, trial.tensor);
  set(option.job.degrees.pp, trial.pipeline);
  const bool alone = trial.parallel == Parallel::none || trial.parallel == Parallel::independent;
  const bool own = splits_by_itself(read_profile(framework_of(asked)), trial, asked);
  const bool foreign = splits_model(trial.parallel) && !own;
  if (foreign) option.job.framework.value = spec::Framework::megatron;
  const bool megatron = framework_of(option) == "megatron";
  const Location where =
      asked.job.parallel.where.known() ? asked.job.parallel.where : asked.cluster.where;
  const std::string& framework = framework_of(option);
  if (read_profile(framework).own_models &&
      !has_own_form(lowerings.find(asked).model(), framework)) {
    faults.error(foreign ? where : asked.job.framework.where,
                 (megatron ? "Megatron-core" : framework) + "'s form of model type " +
                     lowerings.find(asked).model().model_type + " is not modelled");
    return {};
  }
  const bool asked_for =
      asked.job.parallel.value == trial.parallel || splits_model(asked.job.degrees);
  if (foreign && trial.parallel == Parallel::pipeline && !asked_for &&
      is_mixture(lowerings.find(asked).model())) {
    faults.error(where, "Megatron-core's pipeline of a mixture is tried where it is asked for");
    return {};
  }
  const bool asked_apart = asked.job.parallel.value == Parallel::independent;
  const bool splits = megatron || (own && splits_model(trial.parallel));
  if (!alone || asked_apart) refuse_degrees(option, trial.parallel, splits && !alone, faults);
  if (alone) {
    refuse(option.job.degrees.ep, "one card alone holds all experts",
           "give --ep 1, or --parallel ddp or zero1 on several cards", faults);
  }
  const auto split = spec::resolve_split(option.job, trial.parallel, option.cluster.count, faults);
  if (!split || !faults.empty()) return {};
  if (splits_model(trial.parallel) && option.cluster.count > 1 &&
      split->tensor * split->pipeline == 1) {
    refuse_no_split(option, trial.parallel, where, faults);
    return {};
  }
  Way way;
  way.parallel = trial.parallel;
  way.lowering = lowerings.share(option);
  const bool copies = trial.parallel == Parallel::data_parallel && option.cluster.count > 1;
  if (copies) drop_autocast(option);
  auto job = job_of_option(option, alone ? 1 : split->data, *way.lowering, faults);
  if (!job) return {};
  if (megatron) set_megatron(option, trial.parallel, *split, *way.lowering, *job, faults);
  if (job->job.titan && trial.parallel == Parallel::tensor) {
    set_titan_tensor(option, *split, *way.lowering, *job, faults);
  }
  if (const std::string refused = cannot_share(job->job, trial.parallel); !refused.empty()) {
    faults.error(where, refused);
  }
  if (!faults.empty()) return {};
  const bool sharded = trial.parallel == Parallel::fsdp1 || trial.parallel == Parallel::fsdp2;
  if (sharded && !job->job.titan) {
    job->assumptions.push_back({"loading", "from the host",
                                "the wrapper takes each unit to the card before it shards it, so "
                                "that no card holds the whole model"});
  }
  if (copies && !in_one_machine(option, where, faults)) return {};
  if (trial.parallel == Parallel::fsdp1) job->assumptions.push_back(units_of_fsdp1(job->job));
  if (copies) warn_of_data_parallel(asked, *job);
  if (foreign) {
    job->assumptions.push_back({"program of " + name_of(trial.parallel), "Megatron-core's",
                                framework_of(asked) +
                                    " splits no layers of its own; parameters are bf16 with fp32 "
                                    "copies in the optimizer"});
    job->warnings.push_back("the program is Megatron-core's, not that of " + framework_of(asked));
  }
  way.job = *std::move(job);
  return way;
}

Alternative cannot(const OptionSpec& option, const Trial& trial, const Diagnostics& why) {
  Alternative out;
  out.parallel = trial.parallel;
  out.applies = false;
  out.split.tensor = trial.tensor.value_or(1);
  out.split.pipeline = trial.pipeline.value_or(1);
  out.split.data = option.cluster.count / (out.split.tensor * out.split.pipeline);
  out.because = "it does not apply";
  if (why.empty()) return out;
  const Diagnostic& first = why.found().front();
  out.because = first.message;
  for (const std::string& note : first.notes) {
    if (note.starts_with("the nearest")) out.because += "; " + note;
  }
  return out;
}

}  // namespace

const std::string& framework_of(const OptionSpec& option) {
  return spec::framework_names()[static_cast<std::size_t>(option.job.framework.value)];
}

namespace {

/// Ways that a framework has and that are tried for nobody who does not name them.
void add_on_request(const OptionSpec& option, Ready& ready) {
  if (option.job.parallel.value != Parallel::automatic || option.cluster.count == 1) return;
  for (const Parallel parallel : read_profile(framework_of(option)).on_request) {
    if (splits_model(parallel) || splits_model(option.job.degrees)) continue;
    Alternative other;
    other.parallel = parallel;
    other.applies = false;
    other.split.data = option.cluster.count;
    other.because = "tried where it is asked for: --parallel " + name_of(parallel);
    ready.impossible.push_back(std::move(other));
  }
}

}  // namespace

Ready prepare(const OptionSpec& option, Lowerings& lowerings, Diagnostics& faults) {
  Ready ready;
  ready.option = &option;
  const std::vector<std::string> known = modelled_frameworks();
  if (std::find(known.begin(), known.end(), framework_of(option)) == known.end()) {
    faults.error(option.job.framework.where,
                 "framework " + framework_of(option) + " is not modelled yet",
                 {"expected one of: " + join(known)});
    return ready;
  }
  Diagnostics unmodelled;
  refuse_unmodelled(option.job.degrees, framework_of(option) == "megatron", unmodelled);
  faults.add(unmodelled);
  if (!unmodelled.empty()) return ready;
  std::optional<Diagnostics> first;
  const std::vector<Trial> tried = trials_of(option, read_profile(framework_of(option)), faults);
  // Other faults of the job are said beside the one that leaves nothing to try.
  if (tried.empty()) {
    Diagnostics more;
    way_of(option, {option.job.parallel.value, {}, {}}, lowerings, more);
    faults.add(more);
  }
  for (const Trial& trial : tried) {
    Diagnostics own;
    if (auto way = way_of(option, trial, lowerings, own)) {
      ready.possible.push_back(*std::move(way));
      continue;
    }
    ready.impossible.push_back(cannot(option, trial, own));
    if (!first) first = std::move(own);
  }
  add_on_request(option, ready);
  // Where degrees were asked for, runs of their own on each card are beside the question.
  const spec::Degrees& given = option.job.degrees;
  const bool degrees = splits_model(given) || has_several(given.dp) || has_several(given.fsdp) ||
                       has_several(given.ep);
  if (degrees && first && ready.possible.size() == 1 &&
      ready.possible.front().parallel == Parallel::independent) {
    ready.possible.clear();
  }
  if (ready.possible.empty() && first) faults.add(*first);
  return ready;
}

}  // namespace shardfit::search
