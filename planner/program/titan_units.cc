#include "program/titan_units.h"

namespace shardfit::program {

Fsdp2Job titan_stage_units(Fsdp2Job job, bool first, bool last) {
  std::erase_if(job.units, [&](const Fsdp2Unit& unit) {
    const bool input = unit.modules.front() == "tok_embeddings";
    const bool output = unit.modules.front() == "norm";
    return (input && !first) || (output && !last);
  });
  return job;
}

void set_titan_units(Fsdp2Job& job, const std::string& reshard, bool pipeline) {
  job.reshard_after_forward = reshard == "default" ? !pipeline : reshard == "always";
  // What is left whole at the end of the forward is what backward begins with.
  job.units = {{{"tok_embeddings"}, {}}, {{"*"}, {}}, {{"norm", "output"}, reshard == "always"}};
  job.cast_inputs = true;
  job.built_on_meta = true;
  job.around_recompute = true;
}

void set_titan_mesh(Fsdp2Job& job, const TitanJob& titan) {
  job.tensor = titan.tensor;
  job.first = titan.rank - titan.tensor * titan.data_rank();
  if (titan.sequence_parallel) job.whole_class = "torch_rms_norm";
}

DdpJob titan_ddp(std::int64_t ranks, std::int64_t rank) {
  DdpJob job;
  job.ranks = ranks;
  job.rank = rank;
  job.bucket_bytes = 100 << 20;
  job.bucket_bytes_given = true;
  job.init_sync = true;
  job.buffers = false;  // it wraps a list of the parameters
  return job;
}

}  // namespace shardfit::program
