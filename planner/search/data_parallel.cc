#include "search/data_parallel.h"

#include "search/sharing.h"
#include "search/ways.h"

namespace shardfit::search {

using spec::OptionSpec;
using spec::Precision;

void drop_autocast(OptionSpec& option) {
  Precision& precision = option.job.precision.value;
  const bool mixed = precision == Precision::bf16_mixed || precision == Precision::fp16_mixed;
  if (mixed && framework_of(option) == "hf-trainer") precision = Precision::fp32;
}

void warn_of_data_parallel(const OptionSpec& asked, RankJob& job) {
  job.warnings.emplace_back(
      "DataParallel is one process: Python starts the kernels of all GPUs in turn, which the step "
      "time does not count");
  OptionSpec dropped = asked;
  drop_autocast(dropped);
  if (dropped.job.precision.value != asked.job.precision.value) {
    job.warnings.emplace_back(
        "the Trainer has no autocast under DataParallel: all is computed in fp32, whatever bf16 or "
        "fp16 say (transformers v5.24.0, trainer.py, use_accelerator_prepare)");
  }
  if (job.job.autocast == DType::bf16) {
    job.warnings.emplace_back(
        "DataParallel's threads do not know autocast's dtype: they compute in fp16, their "
        "default, without a loss scaler (torch/nn/parallel/parallel_apply.py)");
  }
  if (job.job.lora) {
    job.warnings.emplace_back(
        "DataParallel adds up gradients of frozen parameters too, as zeros: GPU 0 holds them "
        "twice at the end of the backward pass");
  }
}

bool in_one_machine(const OptionSpec& option, const Location& where, Diagnostics& faults) {
  if (option.cluster.count <= most_in_a_machine) return true;
  faults.error(where, "DataParallel is one process: its GPUs are those of one machine",
               {"expected at most " + std::to_string(most_in_a_machine) +
                "; --parallel ddp has a process for each GPU"});
  return false;
}

}  // namespace shardfit::search
