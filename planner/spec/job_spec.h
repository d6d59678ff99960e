#pragma once
// What a person wants trained, on what: plan.yaml and the command line as one, every value with its
// place or with the reason why it was assumed.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostic.h"
#include "spec/cluster_spec.h"
#include "spec/node.h"
#include "spec/price_spec.h"

namespace shardfit::spec {

/// A value somebody gave (then `where` says where), or one assumed for want of it.
template <class T>
struct Setting {
  T value{};
  Location where;
  std::string because;  // why it was assumed; empty where it was given
  bool assumed() const { return !because.empty(); }
};

enum class Task { full, pretrain, lora, qlora, inference };
enum class Framework {
  hf_trainer,
  plain_pytorch,
  torchtitan,
  torchtune,
  litgpt,
  trl,
  deepspeed,
  megatron,
  prime_rl
};
/// bf16_mixed: float32 parameters, bfloat16 compute; bf16: everything stored in bfloat16.
enum class Precision { bf16_mixed, bf16, fp16_mixed, fp32 };
enum class Optimizer {
  adamw_fused,
  adamw_foreach,
  adamw_loop,
  adamw8bit,
  paged_adamw8bit,
  sgd,
  sgd_momentum,
  adafactor,
  adagrad
};
/// automatic: searched.
enum class RecomputeKind { none, full, selective, automatic };
/// automatic: what the framework's release dispatches on the card.
enum class Attention { automatic, flash, efficient, cudnn, math, eager, flash2, flash3 };
/// automatic: every one that applies is tried; independent: one run a card.
enum class Parallel {
  automatic,
  none,
  ddp,
  zero1,
  zero2,
  zero3,
  fsdp1,
  fsdp2,
  tensor,
  pipeline,
  data_parallel,  // torch.nn.DataParallel: one process
  independent
};
enum class Schedule { one_f_one_b, gpipe, interleaved_1f1b, zero_bubble, zbv };
enum class Hypothesis { larger_batch, shorter_step, make_possible };
/// What a search makes best: seconds of a step, samples a second of all cards, bytes a GPU needs.
enum class Objective { step, throughput, memory };
enum class AdapterDtype { fp32, bf16, fp16 };

// The words for each, in the order of the enumerators; the first is the default where there is one.
std::span<const std::string> task_names();
std::span<const std::string> framework_names();
std::span<const std::string> precision_names();
std::span<const std::string> optimizer_names();
std::span<const std::string> attention_names();
std::span<const std::string> parallel_names();
std::span<const std::string> schedule_names();
std::span<const std::string> hypothesis_names();
std::span<const std::string> objective_names();
std::span<const std::string> adapter_dtype_names();

struct Recompute {
  RecomputeKind kind = RecomputeKind::none;
  std::string policy;  // of a selective one
};

struct Lora {
  Setting<std::int64_t> rank;
  Setting<double> alpha;
  Setting<double> dropout;
  std::optional<Setting<std::vector<std::string>>> targets;  // the framework's default where absent
  Setting<AdapterDtype> dtype;
};

/// Degrees as given. Their product (ep aside: experts are spread over ranks that are there) is the
/// number of GPUs.
struct Degrees {
  std::optional<Setting<std::int64_t>> dp, fsdp, tp, pp, cp, ep;
};

/// Something taken for granted, for the report.
struct Assumption {
  std::string key;  // as on the command line, without dashes
  std::string value;
  std::string because;
};

/// One job. Nothing here depends on the model's numbers.
struct JobSpec {
  Setting<std::string> model;  // a path or a name, as given; see resolve_beside
  Setting<Task> task;
  Setting<Framework> framework;
  std::optional<Setting<std::string>> framework_version;  // the newest modelled where absent
  Setting<Precision> precision;
  std::optional<Setting<Optimizer>> optimizer;  // the framework's default where absent
  std::optional<Setting<std::int64_t>> micro_batch, accumulation,
      global_batch;                         // see resolve_batch
  std::optional<Location> any_micro_batch;  // where "micro-batch auto" stands: it is searched
  Setting<std::int64_t> sequence;
  std::optional<Setting<std::int64_t>> samples;  // of an epoch
  Setting<Recompute> recompute;
  Setting<Attention> attention;
  std::optional<Setting<std::string>> experts;  // how routed experts run; see search/experts.h
  std::optional<Lora> lora;                     // for the tasks lora and qlora
  Setting<Parallel> parallel;
  std::optional<Setting<bool>> peer_access;  // between GPUs; the device's file where absent
  /// Processes of the other ranks hold a context on GPU 0 too.
  std::optional<Setting<bool>> stray_contexts;
  /// Of each GPU's link to the host, where what they exchange passes through it.
  std::optional<Setting<std::vector<BytesPerSecond>>> host_links;
  Degrees degrees;
  std::optional<Setting<Schedule>> schedule;
  std::optional<Setting<std::vector<std::int64_t>>> stage_layers;  // equally many where absent
  std::optional<Setting<bool>> sequence_parallel;                  // beside tp; off where absent
  std::optional<Setting<std::string>> allocator;  // PyTorch's settings string, as given

  std::vector<Assumption> assumptions;
};

/// One row of the comparison: a job on devices.
struct OptionSpec {
  std::string name;
  ClusterSpec cluster;
  JobSpec job;
  double imbalance = 0.1;  // as in the plan
};

/// A value of a file that lost against the command line or a later file.
struct Override {
  std::string key;
  std::string winner, loser;  // values as written
  Location winner_where, loser_where;
};

struct PlanSpec {
  std::vector<OptionSpec> options;
  std::optional<Setting<Hypothesis>> hypothesis;
  std::optional<PriceSpec> prices;               // the person's price file
  std::optional<Setting<Objective>> objective;   // of a search
  std::optional<Setting<double>> search_budget;  // its seconds of CPU time
  /// From how much more on, as a share, one GPU's need or work is named an imbalance.
  double imbalance = 0.1;
  std::vector<Setting<std::string>> device_profiles;
  std::vector<Override> overrides;
};

/// One key of a job, on the command line ("--micro-batch") and in YAML ("micro-batch" or
/// "micro_batch").
struct JobKey {
  std::string name;
  std::string value;  // what stands for the value in help: "N"
  std::string group;  // heading in help
  std::string help;
  bool repeatable = false;
};

/// Every option of `plan` that is also a key of plan.yaml.
std::span<const JobKey> job_keys();

/// Reads plan files and the command line (a map of job keys; repeatable ones are lists) into one
/// plan. Later files win over earlier ones, the command line over all; each such case is an
/// Override. Faults go to `faults`; the plan is complete only where there are none.
PlanSpec read_plan(const std::vector<std::string>& files, const Node& command_line,
                   DeviceCatalog& devices, Diagnostics& faults);

/// The merged map of one job's keys as a job.
JobSpec read_job(const Node& keys, Diagnostics& faults);

/// Samples of one step.
struct Batch {
  std::int64_t micro = 1;         // a pass of one data-parallel rank
  std::int64_t accumulation = 1;  // passes a step
  std::int64_t global = 1;        // micro x accumulation x ranks
  std::vector<Assumption> assumptions;
};

/// Any two of micro-batch, accumulation and global batch imply the third; what is not implied is
/// assumed to be 1. A contradiction, or a global batch that does not divide, is a fault.
std::optional<Batch> resolve_batch(const JobSpec& job, std::int64_t data_parallel_ranks,
                                   Diagnostics& faults);

/// Into how many parts a job is split in each direction; their product is the number of GPUs.
struct Split {
  std::int64_t data = 1, tensor = 1, pipeline = 1, context = 1;
  std::int64_t expert = 1;  // of the data ranks: no factor of the product
};

/// The split of a job under `parallel` (never automatic) on `gpus` GPUs with the degrees given:
/// what is not given is 1, but for the degree that `parallel` is named after and for data
/// parallelism, which take what the others leave. A product of degrees that is not the number of
/// GPUs is a fault.
std::optional<Split> resolve_split(const JobSpec& job, Parallel parallel, std::int64_t gpus,
                                   Diagnostics& faults);

/// Ranks that each see other samples: the data part of the split; 1 for independent runs.
std::optional<std::int64_t> data_parallel_ranks(const JobSpec& job, Parallel parallel,
                                                std::int64_t gpus, Diagnostics& faults);

/// A path as the person meant it: relative to the file that names it where such a file exists, else
/// as it stands (relative to the working directory).
std::string resolve_beside(const Setting<std::string>& path);

}  // namespace shardfit::spec
