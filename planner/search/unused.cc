// Words of a job that nothing of it reads.

#include <algorithm>

#include "search/sharing.h"
#include "search/ways.h"

namespace shardfit::search {

using spec::Parallel;

void refuse_unused(const std::vector<Ready>& options, Diagnostics& faults) {
  if (!faults.empty()) return;
  bool pipeline = false, tensor = false;
  for (const Ready& ready : options) {
    for (const Way& way : ready.possible) {
      const auto& megatron = way.job.job.megatron;
      pipeline = pipeline || (megatron && megatron->pipeline > 1);
      const auto& titan = way.job.job.titan;
      tensor = tensor || (megatron && megatron->tensor > 1) || (titan && titan->tensor > 1);
    }
  }
  const bool several = std::any_of(options.begin(), options.end(), [](const Ready& ready) {
    return std::any_of(ready.possible.begin(), ready.possible.end(), [](const Way& way) {
      return way.parallel != Parallel::none && way.parallel != Parallel::independent &&
             way.parallel != Parallel::data_parallel;
    });
  });
  for (const Ready& ready : options) {
    const spec::JobSpec& job = ready.option->job;
    if (job.stray_contexts && job.stray_contexts->value && !several) {
      faults.error(
          job.stray_contexts->where,
          "'stray-contexts' is given, but no option has several processes that share a job",
          {"leave it out: one process has one context"});
    }
    const std::string note = "leave it out, or give --parallel ";
    if (job.schedule && !pipeline) {
      faults.error(job.schedule->where, "'schedule' is given, but no option has a pipeline",
                   {note + "pipeline"});
    }
    if (job.stage_layers && !pipeline) {
      faults.error(job.stage_layers->where, "'stage-layers' is given, but no option has a pipeline",
                   {note + "pipeline"});
    }
    if (job.sequence_parallel && job.sequence_parallel->value && !tensor) {
      faults.error(job.sequence_parallel->where,
                   "'sequence-parallel' is given, but no option has tensor ranks",
                   {note + "tensor"});
    }
  }
}

void warn_of_unused(Option& option) {
  const spec::JobSpec& job = option.spec->job;
  const std::string taken =
      " changes nothing: " + name_of(option.parallel, option.split) + " has no ";
  if (job.sequence_parallel && job.sequence_parallel->value && option.split.tensor == 1) {
    option.warnings.push_back("sequence-parallel yes" + taken + "tensor ranks");
  }
  if (option.split.pipeline > 1) return;
  if (job.schedule && job.schedule->where.known()) {
    option.warnings.push_back("schedule" + taken + "pipeline");
  }
  if (job.stage_layers && job.stage_layers->where.known()) {
    option.warnings.push_back("stage-layers" + taken + "pipeline");
  }
}

}  // namespace shardfit::search
