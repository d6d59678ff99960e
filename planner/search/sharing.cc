#include "search/sharing.h"

#include <utility>

namespace shardfit::search {

using spec::Parallel;

const std::string& name_of(Parallel parallel) {
  return spec::parallel_names()[static_cast<std::size_t>(parallel)];
}

std::string what_is_shared(Parallel parallel, std::int64_t gpus) {
  if (gpus == 1) return "";
  switch (parallel) {
    case Parallel::independent:
      return "nothing: each card runs a job of its own, whole model and whole batch";
    case Parallel::ddp:
      return "each card keeps a whole copy of model, gradients and optimizer states; the batch is "
             "split";
    case Parallel::zero1:
      return "each card keeps a whole copy of model and gradients; optimizer states and the batch "
             "are split";
    case Parallel::zero2:
      return "each card keeps a whole copy of the model; gradients, optimizer states and the batch "
             "are split";
    case Parallel::zero3:
    case Parallel::fsdp1:
    case Parallel::fsdp2:
      return "model, gradients, optimizer states and the batch are split; a layer's parameters are "
             "gathered while it runs";
    case Parallel::tensor:
      return "every layer's matrices are split; each card sees the whole batch";
    case Parallel::pipeline:
      return "the layers are split; micro-batches pass from card to card";
    case Parallel::none:
    case Parallel::automatic:
      break;
  }
  return "nothing";
}

std::vector<RankGroup> rank_groups(Parallel parallel, std::int64_t gpus) {
  const int last = static_cast<int>(gpus) - 1;
  switch (parallel) {
    case Parallel::none:
    case Parallel::independent:
      return {{0, 0, last, gpus == 1 ? "the job" : "a run of its own"}};
    case Parallel::ddp:
      return {{0, 0, last, "a replica"}};
    default:
      break;
  }
  std::vector<RankGroup> groups;  // shares differ: parameters do not divide evenly
  for (int rank = 0; rank <= last; ++rank) {
    groups.push_back({rank, rank, rank, "rank " + std::to_string(rank)});
  }
  return groups;
}

namespace {

/// DeepSpeed's configuration of a stage, the rest at its defaults; stage 0 is its data parallelism.
program::DeepSpeedJob deepspeed_job(const program::TrainingJob& job, Parallel parallel,
                                    std::int64_t ranks, int rank) {
  program::DeepSpeedJob engine;
  engine.stage = parallel == Parallel::zero1   ? 1
                 : parallel == Parallel::zero2 ? 2
                 : parallel == Parallel::zero3 ? 3
                                               : 0;
  const bool alone = parallel == Parallel::none || parallel == Parallel::independent;
  engine.ranks = alone ? 1 : ranks;
  engine.rank = alone ? 0 : rank;
  engine.clip = job.clip_foreach.has_value();
  return engine;
}

}  // namespace

program::TrainingJob job_of_rank(program::TrainingJob job, Parallel parallel, std::int64_t ranks,
                                 int rank) {
  if (job.framework == "deepspeed") {
    // Mixed precision is the engine's own: the model, adapters too, in 16 bit, masters in fp32.
    if (job.autocast) job.parameters = *std::exchange(job.autocast, std::nullopt);
    if (job.lora && is_half(job.parameters)) job.lora->fp32_adapters = false;
    job.grad_scaler = false;
    job.deepspeed = deepspeed_job(job, parallel, ranks, rank);
    return job;
  }
  if (parallel == Parallel::ddp || parallel == Parallel::zero1) {
    job.ddp = program::DdpJob{};
    job.ddp->ranks = ranks;
    job.ddp->rank = rank;
    // transformers' Trainer enters no_sync for all but the last pass (Accelerator.accumulate)
    job.ddp->no_sync = job.framework == "hf-trainer";
  }
  if (parallel == Parallel::zero1) {
    job.zero_redundancy = program::ZeroRedundancyJob{};
    job.zero_redundancy->ranks = ranks;
    job.zero_redundancy->rank = rank;
  }
  if (parallel == Parallel::fsdp2) {
    program::Fsdp2Job fsdp;
    fsdp.ranks = ranks;
    fsdp.rank = rank;
    if (job.autocast) {  // the wrapper's policy in place of autocast
      fsdp.compute = job.autocast;
      // accelerate reduces in the compute dtype, torch's examples in float32
      const bool accelerate = job.framework == "hf-trainer";
      fsdp.reduce = accelerate ? job.autocast : DType::f32;
      if (accelerate) {
        fsdp.output = job.autocast;
      } else {
        job.autocast.reset();
      }
    }
    job.fsdp2 = fsdp;
  }
  return job;
}

std::string cannot_share(const program::TrainingJob& job, Parallel parallel) {
  if (parallel == Parallel::fsdp2 && job.lora && job.lora->fp32_adapters &&
      is_half(job.parameters)) {
    return "fully_shard takes parameters of one dtype, and the adapters are fp32 in a 16-bit model "
           "(--lora-dtype)";
  }
  return "";
}

}  // namespace shardfit::search
