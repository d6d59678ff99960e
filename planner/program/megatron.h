#pragma once
// A job of Megatron-core (NVIDIA/Megatron-LM core_v0.16.1): its parallel degrees and switches.

#include <cstdint>
#include <vector>

#include "program/pipeline_schedule.h"
#include "tensor/dtype.h"

namespace shardfit::model {
class Machine;
struct CompiledClass;
struct Globals;
}  // namespace shardfit::model

namespace shardfit::program {

struct TrainingJob;

struct MegatronJob {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 1;
  std::int64_t virtual_stages = 1;  // chunks of a stage; more than one: interleaved
  /// Layers of each stage; empty: equally many (pipeline_model_parallel_layout, with one chunk).
  std::vector<std::int64_t> stage_layers;
  /// Ranks over which the experts of a mixture are spread; they are data ranks in a row.
  std::int64_t expert = 1;
  bool sequence_parallel = false;
  bool distributed_optimizer = false;
  /// overlap_grad_reduce and, with the distributed optimizer, overlap_param_gather: then gradients
  /// have buckets.
  bool overlap = false;
  std::int64_t bucket_size = 0;    // elements; 0: max(40 M, 1 M x data)
  bool bucket_all_chunks = false;  // else only the first chunk has buckets
  DType gradients = DType::f32;    // of the buffers; grad_reduce_in_fp32
  /// 1F1B, or interleaved with several chunks. GPipe is here for comparison: Megatron has none.
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  /// Global rank; tensor ranks are neighbours, then data, then pipeline ranks
  /// (parallel_state.py, order tp-cp-ep-dp-pp).
  std::int64_t rank = 0;
  /// Rows of the vocabulary; 0: the model's, rounded up to a multiple of 128 x tensor as
  /// Megatron-LM's tokenizer does.
  std::int64_t padded_vocabulary = 0;
  bool bias_activation_fusion = true;
  bool softmax_fp32 = false;    // attention_softmax_in_fp32
  bool attention_mask = false;  // the program gives a mask of b x 1 x s x s
  bool cross_entropy_fusion = false;
  enum class Recompute : std::uint8_t { none, full, full_block, core_attention, mlp };
  Recompute recompute = Recompute::none;
  std::int64_t recompute_layers = 1;  // of full_block

  std::int64_t ranks() const { return tensor * pipeline * data; }
  std::int64_t tensor_rank() const { return rank % tensor; }
  std::int64_t data_rank() const { return rank / tensor % data; }
  /// Place among the ranks that hold one copy of all experts.
  std::int64_t expert_rank() const { return data_rank() % expert; }
  /// Ranks that hold the same experts, and this one's place among them.
  std::int64_t expert_data() const { return data / expert; }
  std::int64_t expert_data_rank() const { return data_rank() / expert; }
  std::int64_t stage() const { return rank / (tensor * data); }
};

/// The job's part; what Megatron does by itself where it has none.
MegatronJob megatron_of(const TrainingJob& job);
/// The schedule of its rank.
PipelineShape pipeline_shape(const TrainingJob& job);

/// Sets what the family's file needs to know of the job.
void set_megatron_words(const TrainingJob& job, model::Globals& globals);

/// Degrees that the model or the batch does not take, each with the nearest that it does: keys
/// `tp`, `pp`, `dp`, `ep`, `virtual_stages`, `stage_layers`, `micro_batches`, `rank`.
std::vector<DegreeFault> check_megatron(const TrainingJob& job, const model::Globals& globals);

/// Writes the program of the job's rank into the machine's runtime: the model's chunks of this
/// stage
/// (`root`), then `steps` times the framework's `loop`.
void run_megatron(const TrainingJob& job, model::Machine& machine, const model::CompiledClass& root,
                  const model::CompiledClass& loop);

}  // namespace shardfit::program
