// A model's graph, read off one step.

#include <algorithm>

#include "graph/network_graph.h"
#include "program/lowering_words.h"
#include "program/training.h"
#include "spec/graph_spec.h"

namespace shardfit::program {
namespace {

/// A person's network runs as it is, in a loop that does nothing but train it.
bool stands_alone(const TrainingJob& job) {
  return (job.program == "plain-loop-1" || job.program == "plain-loop-2") && !job.deepspeed &&
         !job.titan && !job.megatron && !job.lora && job.train_only.empty() && !job.channels_last &&
         !job.optimizer_in_backward && !job.grad_scaler && !job.zero_redundancy &&
         job.offload == TrainingJob::Offload::none && job.metric_batches == 0;
}

bool writes_over(const spec::GraphScope& scope) {
  return std::any_of(
      scope.operators.begin(), scope.operators.end(), [](const spec::GraphOperator& op) {
        if (op.body) return writes_over(*op.body);
        return std::any_of(op.fields.begin(), op.fields.end(),
                           [](const auto& field) { return field.first == "in_place"; });
      });
}

}  // namespace

void check_writes(const Lowering& lowering, const TrainingJob& job) {
  if (!lowering.model().graph) return;
  if (!writes_over(lowering.model().graph->whole)) return;
  TrainingJob plain = job;
  plain.copy_blocks = true;
  plain.record_computes = false;
  plain.optimizer = "sgd";
  plain.zero_redundancy.reset();
  plain.offload = TrainingJob::Offload::none;
  plain.optimizer_in_backward = false;
  plain.metric_batches = 0;
  lowering.graph(plain, graph::Detail::layers);
}

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
