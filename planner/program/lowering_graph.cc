// A model's graph, read off one step.

#include "graph/network_graph.h"
#include "program/training.h"

namespace shardfit::program {
namespace {

/// A person's network runs as it is, in a loop that does nothing but train it.
bool stands_alone(const TrainingJob& job) {
  return (job.program == "plain-loop-1" || job.program == "plain-loop-2") && !job.deepspeed &&
         !job.titan && !job.megatron && !job.lora && job.train_only.empty() && !job.channels_last &&
         !job.optimizer_in_backward && !job.grad_scaler && !job.zero_redundancy &&
         job.offload == TrainingJob::Offload::none && job.metric_batches == 0;
}

}  // namespace

graph::ModelGraph Lowering::graph(const TrainingJob& job, graph::Detail detail) const {
  TrainingJob one = job;
  one.steps = 1;
  one.accumulation = 1;
  one.recompute = Recompute::none;
  one.ddp.reset();
  one.fsdp2.reset();
  one.fsdp1.reset();
  graph::ModelGraph graph;
  if (model_.graph && job.copy_blocks && stands_alone(one)) {
    try {
      run(one, &graph, detail);
      return graph;
    } catch (const graph::NotInParts&) {
      graph = {};
    }
  }
  run(one, &graph);
  return graph;
}

}  // namespace shardfit::program
