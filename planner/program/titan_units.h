#pragma once
#include <string>

#include "program/strategy.h"
#include "program/torchtitan.h"

namespace shardfit::program {

/// The calls of fully_shard in torchtitan's apply_fsdp (torchtitan v0.2.2,
/// torchtitan/models/llama3/infra/parallelize.py) for the setting fsdp_reshard_after_forward:
/// "default", "always" or "never"; in a pipeline the default is to keep blocks whole.
void set_titan_units(Fsdp2Job& job, const std::string& reshard, bool pipeline);

/// Without the calls for what a stage of a pipeline does not have.
Fsdp2Job titan_stage_units(Fsdp2Job job, bool first, bool last);

/// Where the job's data ranks stand in its mesh.
void set_titan_mesh(Fsdp2Job& job, const TitanJob& titan);

/// Its apply_ddp: torch.distributed._composable.replicate with buckets of 100 MiB.
DdpJob titan_ddp(std::int64_t ranks, std::int64_t rank);

}  // namespace shardfit::program
