#pragma once
// How the ranks of a job share it: a strategy sees the moments at which the framework's wrapper
// acts. One strategy a file in strategies/.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/machine.h"
#include "program/optimizer.h"
#include "tensor/runtime.h"

namespace shardfit::program {

/// How the parameters of a pipeline's stage are shared, as its schedule asks
/// (torch/distributed/pipelining/stage.py, schedules.py).
class StageSharding {
 public:
  virtual ~StageSharding() = default;
  /// The backward of a micro-batch comes, which neither exchanges gradients nor lets whole
  /// parameters go (backward_maybe_with_nosync).
  virtual void before_backward_pass() = 0;
  /// All micro-batches have been: what they left is exchanged (perform_reduce_grad).
  virtual void reduce_gradients() = 0;
  /// The passes that found out shapes are over (_post_metadata_inference_cleanup).
  virtual void forget_passes() = 0;
  /// All parameters are gathered at once (UNSHARD), awaited, let go (RESHARD).
  virtual void unshard() = 0;
  virtual void await_unshard() = 0;
  virtual void reshard() = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// The model is built; the wrapper's constructor runs.
  virtual void wrap(const model::Module& root) = 0;
  /// What the optimizer is given: of the trainable parameters that the wrapped model lists, or in
  /// their place.
  virtual std::vector<tensor::Tensor> optimized(std::vector<tensor::Tensor> listed) const {
    return listed;
  }
  /// Parameters, gradients and states are on the host, and so is the optimizer's step.
  virtual bool optimizes_on_host() const { return false; }
  /// The first micro-batch of a step enters the wrapper's no_sync(), before it is made.
  virtual void enter_no_sync() {}
  /// What the wrapped model is called with becomes this rank's part of it; before_forward follows.
  virtual void scatter(model::ValueList&) {}
  /// Before and after the wrapped model's forward. `synchronize`: gradients of this pass are
  /// exchanged.
  virtual void before_forward(bool synchronize) = 0;
  virtual void after_forward(bool synchronize, model::Value& result) = 0;
  /// The norm of all gradients, which are scaled by it.
  virtual tensor::Tensor clip(const std::vector<tensor::Tensor>& parameters, bool foreach);
  /// A parameter's gradient has been accumulated.
  virtual void after_gradient(tensor::TensorBody&) {}
  /// Whether after_gradient does anything in the pass that runs.
  virtual bool waits_for_gradients() const { return true; }
  /// The backward pass has ended.
  virtual void after_backward() {}
  /// The call that ran the backward pass has returned.
  virtual void backward_returned() {}
  /// So many micro-batches, which do what the one before did, are not run.
  virtual void left_out(std::int64_t /*passes*/) {}
  /// What it does where the wrapped model is a stage of a pipeline; null: nothing.
  virtual StageSharding* of_stage() { return nullptr; }
  /// The wrapper updates the parameters by itself; false: the loop's optimizer does.
  virtual bool step() { return false; }
};

/// DistributedDataParallel's settings.
struct DdpJob {
  std::int64_t ranks = 2;
  std::int64_t rank = 0;
  std::int64_t bucket_bytes = 25 << 20;
  bool bucket_bytes_given = false;  // then the first bucket is not a smaller one
  bool bucket_view = false;         // gradients are views of the buckets
  bool static_graph = false;
  bool find_unused = false;
  bool buffers = true;     // the module's are sent before each forward; false: it was given none
  bool init_sync = false;  // rank 0's parameters and buffers are sent to the others at the start
  bool no_sync = false;    // only the last micro-batch of a step exchanges gradients
};

/// torch.nn.DataParallel: one process with several GPUs, of which the first has model, optimizer
/// and the loop; the batch is that of all of them.
inline constexpr const char* gathered_outputs = "gathered_outputs";  // kind of what the first holds
struct DataParallelJob {
  std::int64_t gpus = 2;
  std::int64_t gpu = 0;
  bool counts_labels = false;  // a number a GPU comes with the batch of a causal model
};

/// One call of fully_shard.
struct Fsdp2Unit {
  std::vector<std::string> modules;  // paths; several modules are gathered and reduced as one
  std::optional<bool> reshard_after_forward;  // empty: as the job says
};

/// fully_shard's settings (torch.distributed.fsdp, "FSDP2").
struct Fsdp2Job {
  /// The calls in their order, before that for the model itself. A path "*" stands for a call for
  /// each block. Empty: input embedding and head where `embeddings` says so, then the blocks.
  std::vector<Fsdp2Unit> units;
  std::int64_t ranks = 2;        // that share one copy
  std::int64_t replicas = 1;     // copies (a mesh of two dimensions)
  std::int64_t rank = 0;         // of ranks * replicas
  std::optional<DType> compute;  // MixedPrecisionPolicy: param_dtype, reduce_dtype, output_dtype
  std::optional<DType> reduce;
  std::optional<DType> output;
  bool cast_inputs = true;
  bool reshard_after_forward = true;
  std::int64_t reshard_ranks = 0;    // after forward: to so many ranks; 0: to all
  std::optional<bool> reshard_root;  // empty: the root stays whole
  bool embeddings = false;           // input embedding and head are units of their own
  int prefetch_forward = 0;          // blocks gathered ahead explicitly
  int prefetch_backward = 0;
  bool offload = false;  // shards, gradients and states on the host
  bool no_sync = false;  // only the last micro-batch of a step exchanges gradients
  /// Of a mesh of data and tensor ranks: the parameters are this tensor rank's parts, data ranks
  /// stand `tensor` apart from `first` on. Gradients of classes that every tensor rank has whole
  /// are partial sums of its tokens.
  std::int64_t tensor = 1;
  std::int64_t first = 0;
  std::string whole_class;
  bool built_on_meta = false;  // no memory before the model is sharded
  bool built_on_host = false;  // each call takes what it shards to the device first
  /// Blocks were wrapped for recompute before they were sharded, so that their hooks run once
  /// around forward and recomputation; false: transformers' layers, which recompute inside.
  bool around_recompute = false;
};

/// FullyShardedDataParallel's settings ("FSDP1"). Units are the blocks of the model and the model
/// itself.
struct Fsdp1Job {
  enum class Sharding : std::uint8_t { full, gradients_and_states, none, hybrid };
  enum class Prefetch : std::uint8_t { none, before, after };  // the current unit's backward
  std::int64_t ranks = 2;                                      // that share one copy
  std::int64_t replicas = 1;                                   // copies (hybrid)
  std::int64_t rank = 0;                                       // of ranks * replicas
  Sharding sharding = Sharding::full;
  bool original_parameters = true;  // use_orig_params
  std::optional<DType> compute;     // MixedPrecision: param_dtype (and buffers), reduce_dtype
  std::optional<DType> reduce;
  bool limit_gathers = true;
  bool prefetch_forward = false;
  Prefetch prefetch_backward = Prefetch::before;
  bool blocks = true;          // false: the model is the only unit
  bool offload = false;        // shards, gradients and states on the host
  bool no_sync = false;        // only the last micro-batch of a step exchanges gradients
  bool built_on_host = false;  // each unit goes to the device as it is flattened
};

/// ZeroRedundancyOptimizer's settings.
struct ZeroRedundancyJob {
  std::int64_t ranks = 2;
  std::int64_t rank = 0;
  bool bucket_view = false;  // parameters are views of one flat tensor a rank
};

/// An optimizer over this rank's share of the parameters. Mixed dtypes share no bucket in torch;
/// here each part is taken to be of one dtype.
std::unique_ptr<Optimizer> make_zero_redundancy(std::unique_ptr<Optimizer> inner,
                                                const ZeroRedundancyJob& job);

std::unique_ptr<Strategy> make_ddp(const DdpJob& job, model::Machine& machine);
std::unique_ptr<Strategy> make_data_parallel(const DataParallelJob& job, model::Machine& machine);
std::unique_ptr<Strategy> make_fsdp2(const Fsdp2Job& job, model::Machine& machine);
std::unique_ptr<Strategy> make_fsdp1(const Fsdp1Job& job, model::Machine& machine);

}  // namespace shardfit::program
