#include "validate/titan_cases.h"

#include "program/titan_units.h"
#include "validate/case_fields.h"

namespace shardfit::validate {
namespace {

using spec::Node;

bool one(const Node& map, const char* key) {
  return !given(map, key) || text(map, key) == "1" || text(map, key) == "0";
}

std::optional<program::PipeliningSchedule> titan_schedule(const std::string& name) {
  using program::PipeliningSchedule;
  if (name == "gpipe") return PipeliningSchedule::gpipe;
  if (name == "1f1b") return PipeliningSchedule::one_forward_one_backward;
  if (name == "interleaved-1f1b") return PipeliningSchedule::interleaved;
  if (name == "interleaved-zero-bubble") return PipeliningSchedule::interleaved_zero_bubble;
  if (name == "zbv") return PipeliningSchedule::zero_bubble_v;
  return std::nullopt;
}

}  // namespace

std::string unsupported_titan(const Node& c) {
  if (text(c, "program") != "torchtitan-0.2.2-trainer") return "program " + text(c, "program");
  const Node& parallel = at(c, "parallel");
  const std::string strategy = text(parallel, "strategy");
  if (strategy != "fsdp2" && strategy != "ddp" && strategy != "none") return "strategy " + strategy;
  if (strategy == "ddp" && !one(parallel, "tensor")) return "tensor ranks under ddp";
  for (const char* degree : {"context", "expert"}) {
    if (!one(parallel, degree)) return std::string(degree) + " parallelism";
  }
  if (!one(parallel, "pipeline")) {
    const std::string schedule = text(parallel, "schedule");
    if (!titan_schedule(schedule)) return "pipeline schedule " + schedule;
    if (strategy != "fsdp2") return "a pipeline without fully_shard";
    if (text(parallel, "split") != "torchtitan default") return "split " + text(parallel, "split");
  }
  if (given(parallel, "cpu_offload") && text(parallel, "cpu_offload") != "none") {
    return "offload to the host";
  }
  for (const Node& flag : at(c, "flags").children) {
    const bool known = flag.text == "untied_output_as_torchtitan" ||
                       flag.text == "optimizer_in_backward" ||
                       flag.text == "own_tensor_parallel_plan_without_sequence_parallel";
    if (!known) return "flag " + flag.text;
  }
  if (truth(c, "compile")) return "torch.compile";
  return "";
}

void read_titan(const Node& c, Case& out, Diagnostics& faults) {
  const Node& parallel = at(c, "parallel");
  program::TrainingJob& job = out.job;
  program::TitanJob titan;
  titan.data = whole(parallel, "data", 1, faults);
  titan.rank = whole(c, "rank", 0, faults);
  titan.tensor = whole(parallel, "tensor", 1, faults);
  titan.pipeline = whole(parallel, "pipeline", 1, faults);
  if (const auto schedule = titan_schedule(text(parallel, "schedule"))) titan.schedule = *schedule;
  titan.stages_a_rank = whole(parallel, "virtual_stages", 1, faults);
  titan.loss_parallel = text(c, "loss") == "vocab_parallel";
  job.titan = titan;
  job.early_stop = false;
  job.recompute_from = 1;
  for (const Node& flag : at(c, "flags").children) {
    if (flag.text == "optimizer_in_backward") job.optimizer_in_backward = true;
    if (flag.text == "own_tensor_parallel_plan_without_sequence_parallel") {
      job.titan->sequence_parallel = false;
    }
  }
  if (text(parallel, "strategy") == "ddp") {
    job.ddp = program::titan_ddp(titan.data, titan.rank);
  }
  if (text(parallel, "strategy") != "fsdp2") return;
  program::Fsdp2Job fsdp;
  fsdp.ranks = whole(parallel, "shard", 1, faults);
  fsdp.replicas = whole(parallel, "replicate", 1, faults);
  fsdp.rank = titan.data_rank();
  program::set_titan_mesh(fsdp, *job.titan);
  fsdp.compute = dtype_named(text(at(c, "precision"), "compute"));
  fsdp.reduce = dtype_named(text(at(c, "precision"), "reduce"));
  program::set_titan_units(fsdp, text(parallel, "reshard_after_forward"), titan.pipeline > 1);
  job.fsdp2 = fsdp;
}

}  // namespace shardfit::validate
