#include "search/titan.h"

#include "program/titan_units.h"

namespace shardfit::search {

using program::TrainingJob;
using spec::Parallel;

void titan_words(const spec::OptionSpec& option, RankJob& out, Diagnostics& faults) {
  const spec::JobSpec& spec = option.job;
  TrainingJob& job = out.job;
  job.titan = program::TitanJob{};
  job.early_stop = false;  // activation_checkpoint.early_stop
  job.recompute_from = 1;  // of every second block, the second (_apply_layer_sac)
  if (job.lora) faults.error(spec.task.where, "torchtitan trains no adapters");
  if (spec.precision.value == spec::Precision::fp16_mixed) {
    faults.error(spec.precision.where, "torchtitan does not compute in fp16",
                 {"expected one of: bf16-mixed, bf16, fp32"});
  }
  if (spec.optimizer && job.optimizer != "adamw") {
    faults.error(spec.optimizer->where, "torchtitan has no other optimizer than Adam and AdamW",
                 {"expected one of: adamw-fused, adamw-foreach, adamw-loop"});
  }
  if (job.attention == "eager") {
    faults.error(spec.attention.where, "torchtitan's Llama has no eager attention",
                 {"expected auto"});
  }
  set_titan_precision(spec.precision.value, job);
  for (spec::Assumption& assumption : out.assumptions) {
    if (assumption.key != "attention-kernel") continue;
    assumption.value = job.autocast ? "flash" : "math";
    assumption.because =
        "torchtitan asks for cuDNN's or flash attention, else plain products; cuDNN's is taken to "
        "keep what flash does";
  }
}

void set_titan_precision(spec::Precision precision, TrainingJob& job) {
  job.parameters = precision == spec::Precision::bf16 ? DType::bf16 : DType::f32;
  job.grad_scaler = false;
  const DType compute = precision == spec::Precision::fp32 ? DType::f32 : DType::bf16;
  if (job.fsdp2) {
    job.fsdp2->compute = compute;
    return;
  }
  job.autocast.reset();
  const bool tensor_alone = job.titan && job.titan->tensor > 1 && job.titan->data == 1;
  if (compute == DType::bf16 && !tensor_alone) job.autocast = compute;
}

namespace {

program::Fsdp2Job policy_of(TrainingJob& job) {
  program::Fsdp2Job fsdp;
  fsdp.compute = std::exchange(job.autocast, std::nullopt).value_or(job.parameters);
  fsdp.reduce = DType::f32;
  program::set_titan_units(fsdp, "default", false);
  return fsdp;
}

/// Its degrees are set; fully_shard shares what is left among ranks that see other samples.
TrainingJob titan_tensor_job(TrainingJob job, int rank) {
  job.titan->rank = rank;
  if (job.titan->data == 1) return job;
  program::Fsdp2Job fsdp = policy_of(job);
  fsdp.ranks = job.titan->data;
  fsdp.rank = job.titan->data_rank();
  program::set_titan_mesh(fsdp, *job.titan);
  job.fsdp2 = fsdp;
  return job;
}

}  // namespace

TrainingJob titan_job(TrainingJob job, Parallel parallel, std::int64_t ranks, int rank) {
  if (parallel == Parallel::tensor) return titan_tensor_job(std::move(job), rank);
  const bool alone = parallel == Parallel::none || parallel == Parallel::independent;
  job.titan->data = alone ? 1 : ranks;
  job.titan->rank = alone ? 0 : rank;
  if (parallel == Parallel::ddp) job.ddp = program::titan_ddp(ranks, rank);
  if (parallel == Parallel::fsdp2) {
    job.fsdp2 = policy_of(job);
    job.fsdp2->ranks = ranks;
    job.fsdp2->rank = rank;
  }
  return job;
}

}  // namespace shardfit::search
