#pragma once
// A training job lowered to the program of one rank: load, then optimizer steps, in the order of
// the framework's own loop (model_specs/frameworks/*.yaml).

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/stop.h"
#include "graph/model_graph.h"
#include "program/deepspeed.h"
#include "program/megatron.h"
#include "program/optimizer.h"
#include "program/strategy.h"
#include "program/torchtitan.h"
#include "spec/model_spec.h"
#include "tensor/runtime.h"

namespace shardfit::program {

enum class Recompute : std::uint8_t {
  none,
  full,            // every block
  first_blocks,    // the first `recompute_blocks` of them
  chosen_blocks,   // those of `chosen_blocks`
  every_second,    // every second block
  save_attention,  // keep attention outputs, recompute the rest
  save_attention_matmul,
  save_attention_matmul_half,  // every second matrix product
};

/// Most micro-batches of a step that are lowered, one by one.
inline constexpr std::int64_t most_passes = 128;

/// Passes of a step that do what the one before did.
enum class EqualPasses : std::uint8_t {
  run,    // one by one, all the same
  copy,   // copied
  leave,  // copied a few times, the rest left out: peaks are the same, the least capacity but for a
          // page, counts and times are not
};

struct LoraJob {
  std::int64_t rank = 16;
  double dropout = 0;
  std::vector<std::string> targets;
  std::vector<std::string> modules_to_save;
  bool fp32_adapters = true;
  bool dora = false;
};

/// Everything that decides the program of one rank. Plain numbers, no places: the spec room has
/// those.
struct TrainingJob {
  std::string framework = "plain-pytorch";
  std::string program = "plain-loop-1";
  std::string head;  // empty: causal where the family has it, else its first
  tensor::DeviceTraits device;
  DType parameters = DType::bf16;
  std::optional<DType> autocast;
  bool autocast_cache = true;
  std::string optimizer = "adamw";
  Implementation implementation = Implementation::foreach;
  std::optional<bool> clip_foreach;  // empty: no clipping
  bool grad_scaler = false;
  bool zero_to_none = true;
  std::int64_t micro_batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t sequence = 1;
  std::int64_t decoder_sequence = 0;
  /// Further sizes of a batch (image_size, latent, frames, ...) by name: a number or several. They
  /// stand in the place of the model's dimension of that name.
  std::map<std::string, std::vector<std::int64_t>> sizes;
  std::set<std::string> switches;  // words of a family's program that are on
  bool channels_last = false;
  std::string train_only;               // path of the one module that is trained; empty: all
  std::string attention = "sdpa";       // sdpa or eager
  std::string attention_mask = "none";  // none, all ones, padded
  std::optional<double> dropout;        // empty: the model file's rates
  std::string loss = "full_logits_fp32";
  Recompute recompute = Recompute::none;
  std::int64_t recompute_blocks = 0;
  std::vector<std::int64_t> chosen_blocks;  // in the order they first run, counted from 0
  std::int64_t recompute_from = 0;          // of every second block: the first that recomputes
  bool reentrant = false;
  bool early_stop = true;              // recomputation ends with the last tensor that is wanted
  bool optimizer_in_backward = false;  // one a parameter, as soon as its gradient is there
  enum class Offload : std::uint8_t { none, pageable, pinned };
  Offload offload = Offload::none;  // of saved tensors
  std::string experts = "grouped_mm";
  /// Of a loop over experts, how tokens choose: balanced, worst (all choose the same), shares.
  std::string routing = "balanced";
  std::vector<double> expert_shares;  // one an expert, in any unit
  std::optional<LoraJob> lora;
  std::optional<DdpJob> ddp;
  std::optional<DataParallelJob> data_parallel;  // whose GPUs take `micro_batch` samples each
  std::optional<Fsdp2Job> fsdp2;
  std::optional<Fsdp1Job> fsdp1;
  std::optional<ZeroRedundancyJob> zero_redundancy;
  std::optional<DeepSpeedJob> deepspeed;
  std::optional<TitanJob> titan;        // of framework torchtitan
  std::optional<MegatronJob> megatron;  // of framework megatron; empty: one rank, all defaults
  int steps = 3;
  /// After the steps an evaluation of so many batches, whose logits a metric keeps; 0: none.
  std::int64_t metric_batches = 0;
  bool record_computes = false;
  /// Of equal blocks in a row a few are run, and of equal operators of a person's graph, where its
  /// graph is asked for, one; false: all are.
  bool copy_blocks = true;
  bool repeat_steps = true;  // a step like the one before is copied; false: every step is run
  EqualPasses equal_passes = EqualPasses::copy;  // but in torchtitan's pipelines
  const StopCheck* stop = nullptr;               // asked before every pass; lower() throws Stopped
};

/// A model read once and lowered as often as wanted.
class Lowering {
 public:
  /// Reads the family with its framework; `implementations` (model_specs/implementations) replace
  /// modules of theirs. Throws InputError.
  Lowering(spec::ModelSpec model, const std::string& framework,
           const std::vector<std::string>& implementations = {});
  ~Lowering();

  /// The program of the job. Throws InputError where the model's program does not work with these
  /// numbers (with the place in the family's file).
  Program lower(const TrainingJob& job) const;
  /// Degrees of the job that the model does not take, each with the nearest that it does; `lower`
  /// throws them as faults of the model's file.
  std::vector<DegreeFault> check(const TrainingJob& job) const;
  /// The model's graph as the first micro-batch of the job runs it, without recompute. Asked for
  /// layers, a person's graph may be without its operators.
  graph::ModelGraph graph(const TrainingJob& job,
                          graph::Detail detail = graph::Detail::operators) const;

  /// Parameters by path, with shapes, without a job; then the buffers that published counts
  /// include.
  struct ParameterShape {
    std::string path;
    tensor::Shape shape;
  };
  std::vector<ParameterShape> parameters() const;
  std::int64_t parameter_count() const;

  /// Tokens beyond which the model has no positions (learned ones); nothing where any length runs.
  std::optional<std::int64_t> longest_sequence() const;
  /// Linear modules under a head, in order of construction.
  struct LinearModule {
    std::string path;
    bool output = false;  // it gives the logits over the vocabulary
  };
  std::vector<LinearModule> linears(const std::string& head) const;

  /// Modules that gradient checkpointing wraps, one by one (blocks).
  std::int64_t recompute_units(const std::string& head) const {
    return static_cast<std::int64_t>(recompute_unit_paths(head).size());
  }
  /// Their paths, in order of construction.
  std::vector<std::string> recompute_unit_paths(const std::string& head) const;
  /// Layers that Megatron-core's pipelines split; 0 for other programs.
  std::int64_t pipeline_layers() const;
  /// Whether the framework's program has an evaluation beside the loop
  /// (TrainingJob::metric_batches).
  bool has_metric(const std::string& program) const;

  const spec::ModelSpec& model() const { return model_; }
  const spec::FamilySpec& family() const { return *family_; }

 private:
  /// With `parts` the graph of a person's own network is put together from its operators;
  /// NotInParts is thrown where that cannot be done.
  Program run(const TrainingJob& job, graph::ModelGraph* graph,
              std::optional<graph::Detail> parts = {}) const;

  spec::ModelSpec model_;
  std::shared_ptr<const spec::FamilySpec> family_;
};

}  // namespace shardfit::program
