#include "search/sharing.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "search/titan.h"

namespace shardfit::search {

using spec::Parallel;

const std::string& name_of(Parallel parallel) {
  return spec::parallel_names()[static_cast<std::size_t>(parallel)];
}

std::string name_of(Parallel parallel, const spec::Split& split) {
  const std::int64_t parts[] = {split.tensor, split.pipeline, split.context, split.data,
                                split.expert};
  constexpr const char* keys[] = {"tp", "pp", "cp", "dp", "ep"};
  std::vector<std::string> degrees;
  for (std::size_t i = 0; i < 5; ++i) {
    if (parts[i] > 1) degrees.push_back(std::string(keys[i]) + " " + std::to_string(parts[i]));
  }
  return name_of(parallel) + (degrees.size() > 1 ? " (" + join(degrees) + ")" : "");
}

spec::Split split_of(const program::TrainingJob& job, Parallel parallel, std::int64_t gpus) {
  if (job.titan && parallel == Parallel::tensor) return {job.titan->data, job.titan->tensor, 1, 1};
  if (job.megatron) {
    return {job.megatron->data, job.megatron->tensor, job.megatron->pipeline, 1,
            job.megatron->expert};
  }
  const bool alone = parallel == Parallel::none || parallel == Parallel::independent;
  return {alone ? 1 : gpus, 1, 1, 1};
}

namespace {

/// What a job with tensor or pipeline ranks shares; `sharded`: its replicas share states too.
std::string what_ranks_share(Parallel parallel, const spec::Split& split, bool sharded) {
  std::string text;
  if (split.tensor > 1) text = "every layer's matrices are split";
  if (split.pipeline > 1) {
    text += std::string(text.empty() ? "" : ", and ") +
            "the layers are split: micro-batches pass from card to card";
  } else {
    text += "; each card sees the whole batch";
  }
  if (split.data == 1) return text;
  if (sharded) {
    return text + " of its group; " + std::to_string(split.data) +
           " groups split the batch, and what each has of model, gradients and optimizer states";
  }
  return text + (split.pipeline > 1 ? "; " : " of its replica; ") + std::to_string(split.data) +
         " replicas split the batch" +
         (parallel == Parallel::zero1 ? " and the optimizer states" : "");
}

std::string what_all_share(const program::TrainingJob& job, Parallel parallel,
                           const spec::Split& split, std::int64_t gpus) {
  if (gpus == 1) return "";
  if (split.tensor > 1 || split.pipeline > 1) {
    return what_ranks_share(parallel, split, job.titan.has_value());
  }
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
    case Parallel::data_parallel:
      return "the batch is split; one process keeps model, gradients and optimizer states on GPU 0 "
             "and copies the model to the others for each pass, whose outputs and gradients come "
             "back to GPU 0";
    case Parallel::none:
    case Parallel::automatic:
      break;
  }
  return "nothing";
}

}  // namespace

std::string what_is_shared(const program::TrainingJob& job, Parallel parallel,
                           const spec::Split& split, std::int64_t gpus) {
  const std::string text = what_all_share(job, parallel, split, gpus);
  if (split.expert < 2) return text;
  return text + "; of the experts each keeps one part of " + std::to_string(split.expert);
}

namespace {

/// Tensor ranks after the first are alike (the first alone counts the norms that all of them hold),
/// and so are data-parallel ranks that do not split the optimizer's states.
std::vector<RankGroup> megatron_groups(const program::MegatronJob& job) {
  std::vector<RankGroup> groups;
  program::MegatronJob one = job;
  for (one.rank = 0; one.rank < job.ranks(); ++one.rank) {
    program::MegatronJob first = one;
    const std::int64_t tensor = std::min<std::int64_t>(one.tensor_rank(), 1);
    const std::int64_t data = job.distributed_optimizer ? one.data_rank() : one.expert_rank();
    first.rank = (one.stage() * job.data + data) * job.tensor + tensor;
    const auto rank = static_cast<int>(one.rank);
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const RankGroup& g) { return g.rank == first.rank; });
    if (same != groups.end()) {
      same->ranks.push_back(rank);
      continue;
    }
    std::vector<std::string> words;
    const auto word = [&](const char* what, std::int64_t at, std::int64_t of) {
      if (of > 1) words.push_back(what + std::to_string(at));
    };
    word("stage ", one.stage(), job.pipeline);
    word("tensor rank ", one.tensor_rank(), job.tensor);
    if (job.distributed_optimizer) word("data rank ", one.data_rank(), job.data);
    word("expert rank ", one.expert_rank(), job.expert);
    if (words.empty()) words.push_back(job.data > 1 ? "a replica" : "the job");
    groups.push_back({rank, {rank}, join(words)});
  }
  return groups;
}

/// Tensor ranks after the first are alike; shares of data ranks differ, as parameters may not
/// divide evenly.
std::vector<RankGroup> titan_tensor_groups(const program::TitanJob& job) {
  std::vector<RankGroup> groups;
  program::TitanJob one = job;
  for (one.rank = 0; one.rank < job.tensor * job.data; ++one.rank) {
    const std::int64_t tensor = one.tensor_rank();
    const auto rank = static_cast<int>(one.rank);
    if (tensor > 1) {
      groups.back().ranks.push_back(rank);
      continue;
    }
    std::string role = "tensor rank " + std::to_string(tensor);
    if (job.data > 1) role += ", data rank " + std::to_string(one.data_rank());
    groups.push_back({rank, {rank}, role});
  }
  return groups;
}

std::vector<int> counted(int ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return all;
}

}  // namespace

std::vector<RankGroup> rank_groups(const program::TrainingJob& job, Parallel parallel,
                                   std::int64_t gpus) {
  const int count = static_cast<int>(gpus);
  if (parallel == Parallel::none || parallel == Parallel::independent) {
    return {{0, counted(count), gpus == 1 ? "the job" : "a run of its own"}};
  }
  if (job.megatron) return megatron_groups(*job.megatron);
  if (job.titan && parallel == Parallel::tensor) return titan_tensor_groups(*job.titan);
  if (parallel == Parallel::ddp) return {{0, counted(count), "a replica"}};
  if (parallel == Parallel::data_parallel) {
    std::vector<int> copies = counted(count);
    copies.erase(copies.begin());
    return {{0, {0}, "model and loop"}, {1, std::move(copies), "a copy a pass"}};
  }
  std::vector<RankGroup> groups;  // shares differ: parameters do not divide evenly
  for (int rank = 0; rank < count; ++rank) {
    groups.push_back({rank, {rank}, "rank " + std::to_string(rank)});
  }
  return groups;
}

namespace {

/// What the program of one of many ranks depends on: ranks of equal shares run equal programs.
class Shares {
 public:
  explicit Shares(const program::Lowering& lowering) {
    for (const auto& parameter : lowering.parameters()) {
      ++parameters_;
      rows_.insert(parameter.shape.rank > 0 ? parameter.shape[0] : 1);
    }
  }

  /// Empty where that is not known.
  std::vector<std::int64_t> of(const program::TrainingJob& job) {
    if (job.megatron || job.deepspeed || job.fsdp1) return {};
    if (job.fsdp2 && job.fsdp2->replicas == 1 && job.fsdp2->tensor == 1) return rows_of(job);
    if (job.zero_redundancy) {
      // Whole parameters go to the rank that has least: those behind as many ranks have none.
      const std::int64_t most = job.lora ? 3 * parameters_ : parameters_;
      if (job.zero_redundancy->rank >= most) return {-1};
    }
    return {};
  }

 private:
  /// Rows of parameters of each height (torch.chunk: equal shares from the first on).
  std::vector<std::int64_t> rows_of(const program::TrainingJob& job) {
    if (job.lora) rows_.insert(job.lora->rank);
    const std::int64_t ranks = job.fsdp2->ranks;
    std::vector<std::int64_t> own;
    for (const std::int64_t all : rows_) {
      const std::int64_t share = (all + ranks - 1) / ranks;
      own.push_back(std::clamp<std::int64_t>(all - job.fsdp2->rank * share, 0, share));
    }
    return own;
  }

  std::set<std::int64_t> rows_;
  std::int64_t parameters_ = 0;
};

}  // namespace

std::vector<LoweredGroup> lower_groups(const program::Lowering& lowering,
                                       std::vector<RankGroup> groups,
                                       const std::function<program::TrainingJob(int rank)>& job_of,
                                       const std::function<bool(const LoweredGroup&)>& take) {
  std::vector<LoweredGroup> lowered;
  std::optional<Shares> shares;
  std::map<std::vector<std::int64_t>, std::shared_ptr<const Program>> known;
  const auto program_of = [&](const RankGroup& group) {
    if (!lowered.empty() && lowered.front().program->same_on_all_ranks) {
      return lowered.front().program;
    }
    const program::TrainingJob job = job_of(group.rank);
    if (groups.size() > 1 && !shares) shares.emplace(lowering);
    const auto share = shares ? shares->of(job) : std::vector<std::int64_t>();
    if (share.empty()) return std::make_shared<const Program>(lowering.lower(job));
    auto& program = known[share];
    if (!program) program = std::make_shared<const Program>(lowering.lower(job));
    return program;
  };
  for (RankGroup& group : groups) {
    auto program = program_of(group);
    lowered.push_back({std::move(group), std::move(program)});
    if (take && !take(lowered.back())) break;
  }
  return lowered;
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
  if (job.megatron) {
    job.megatron->rank = rank;
    return job;
  }
  if (job.titan) return titan_job(std::move(job), parallel, ranks, rank);
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
    job.ddp->init_sync = true;
    // transformers' Trainer enters no_sync for all but the last pass (Accelerator.accumulate)
    job.ddp->no_sync = job.framework == "hf-trainer";
  }
  if (parallel == Parallel::data_parallel && ranks > 1) {
    job.data_parallel = program::DataParallelJob{ranks, rank, job.framework == "hf-trainer"};
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
    fsdp.built_on_host = true;
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
  if (parallel == Parallel::fsdp1) {
    program::Fsdp1Job fsdp;
    fsdp.ranks = ranks;
    fsdp.rank = rank;
    fsdp.built_on_host = true;
    const bool accelerate = job.framework == "hf-trainer";
    if (accelerate) fsdp.prefetch_backward = program::Fsdp1Job::Prefetch::none;
    if (job.autocast) {  // MixedPrecision, as with fsdp2
      fsdp.compute = job.autocast;
      fsdp.reduce = accelerate ? job.autocast : DType::f32;
      if (!accelerate) job.autocast.reset();
    }
    job.fsdp1 = fsdp;
  }
  return job;
}

std::string cannot_share(const program::TrainingJob& job, Parallel parallel) {
  if (job.megatron && job.lora) return "an adapter has no place in the program of Megatron-core";
  if (job.titan && parallel == Parallel::tensor && job.titan->data == 1 && job.autocast) {
    return "torchtitan computes in bf16 beside fp32 parameters only under fully_shard, which "
           "tensor "
           "ranks alone have not (--precision bf16 or fp32, or --framework megatron)";
  }
  const bool shards = parallel == Parallel::fsdp1 || parallel == Parallel::fsdp2;
  if (shards && job.lora && job.lora->fp32_adapters && is_half(job.parameters)) {
    return std::string(parallel == Parallel::fsdp1 ? "FullyShardedDataParallel" : "fully_shard") +
           " takes parameters of one dtype, and the adapters are fp32 in a 16-bit model "
           "(--lora-dtype)";
  }
  return "";
}

spec::Assumption units_of_fsdp1(const program::TrainingJob& job) {
  std::string because =
      "transformer_auto_wrap_policy with use_orig_params; the embedding, the head and the last "
      "norm are the outermost unit's";
  if (job.lora) {
    because +=
        "; a flat parameter with an adapter in it takes gradients of the frozen weights "
        "beside it";
    // Trainer._fsdp_qlora_plugin_updates, peft.utils.other.fsdp_auto_wrap_policy
    if (job.framework == "hf-trainer") {
      because +=
          ", which it does not where the Trainer wraps adapters apart as PEFT's "
          "fsdp_auto_wrap_policy says: that needs less and is not modelled";
    }
  }
  return {"units", "a block each, the rest one", because};
}

}  // namespace shardfit::search
