// Of a search: what its results are called.

#include "base/format.h"
#include "search/joint.h"
#include "search/sharing.h"
#include "search/stage_cut.h"

namespace shardfit::search {
namespace {

constexpr double gib = 1024.0 * 1024 * 1024;

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

}  // namespace

bool Option::undecided() const {
  return verdict == Verdict::does_not_fit && search && search->undecided();
}

const char* verdict_text(const Option& option) {
  return option.undecided() ? "not decided" : verdict_text(option.verdict);
}

std::string Configuration::recompute_words() const {
  constexpr const char* kinds[] = {"none", "full", "selective:", "auto"};
  return kinds[static_cast<int>(recompute.kind)] + recompute.policy;
}

std::string Configuration::words() const {
  return (parallel == spec::Parallel::none ? "" : name_of(parallel, split) + ", ") +
         "micro-batch " + format_count(micro_batch) + ", accumulation " +
         format_count(accumulation) + ", recompute " + recompute_words() +
         (stage_layers.empty() ? "" : ", stage-layers " + cut_words(stage_layers));
}

double ShadowPrice::seconds_per_gib() const {
  return saved_seconds / (static_cast<double>(short_bytes) / gib);
}

double ShadowPrice::samples_per_second_per_gib() const {
  return more_samples_per_second / (static_cast<double>(short_bytes) / gib);
}

bool SearchResult::undecided() const {
  return !stopped.empty() && !best.empty() && !best.front().found && !best.front().proven;
}

const char* SearchResult::stop_words() const {
  return stopped.empty() ? "" : search::stop_words(stopped == "budget");
}

const char* stop_words(bool by_budget) {
  return by_budget ? "within the budget" : "before the interrupt";
}

void say_undecided(Option& option) {
  const SearchResult& result = *option.search;
  const std::string left = format_count(result.left) + " of " +
                           format_count(result.configurations) + " configurations are left";
  if (option.verdict == Verdict::tight) {
    option.warnings.push_back(std::string("not decided ") + result.stop_words() +
                              ": whether another configuration fits; " + left);
    return;
  }
  const std::string why = option.reason.substr(0, option.reason.find(": CUDA out of memory"));
  const Configuration c{option.parallel,
                        option.split,
                        option.job.batch.micro,
                        option.job.batch.accumulation,
                        option.spec->job.recompute.value,
                        {}};
  option.reason = left + ", and none that was run fits. The one that likely needs least, " +
                  c.words() + ", is " + size(-option.worst_gpu().judgement.headroom()) +
                  " short (" + why + "). Give more time, or one configuration";
}

}  // namespace shardfit::search
