#include "program/strategies/titan_pipeline.h"

#include <stdexcept>
#include <unordered_map>

#include "program/clip.h"
#include "program/materialize.h"
#include "program/titan_units.h"

namespace shardfit::program {

using model::Machine;
using model::Module;
using model::Value;
using model::ValueList;
using tensor::Tensor;

namespace {

/// The hooks of several stages, each for its own modules.
class HooksOfStages : public model::ModuleHooks {
 public:
  void add(const Module& root, ModuleHooks* hooks) {
    of_.emplace(&root, hooks);
    model::for_each_child(root, [&](const Module& child) { add(child, hooks); });
  }
  void before_forward(const Module& module, Value* arguments, std::size_t count) override {
    of_.at(&module)->before_forward(module, arguments, count);
  }
  void after_forward(const Module& module, Value& result) override {
    of_.at(&module)->after_forward(module, result);
  }

 private:
  std::unordered_map<const Module*, ModuleHooks*> of_;
};

}  // namespace

std::vector<const Module*> build_titan_stages(const TrainingJob& job, Machine& machine,
                                              const model::CompiledClass& model) {
  const std::vector<std::int64_t> held = titan_stages(*job.titan);
  const std::int64_t stages = job.titan->stages();
  const std::vector<std::int64_t> layers =
      titan_stage_layers(stages, machine.globals.integer("num_hidden_layers"));
  std::vector<const Module*> roots;
  for (const std::int64_t stage : held) {
    const std::string path = held.size() > 1 ? "stage" + std::to_string(stage) : "";
    roots.push_back(machine.build(model,
                                  {Value::of_bool(stage == 0), Value::of_bool(stage == stages - 1),
                                   Value::of(layers[static_cast<std::size_t>(stage)])},
                                  path));
  }
  return roots;
}

TitanPipeline::TitanPipeline(const TrainingJob& job, Machine& machine,
                             std::vector<const Module*> roots)
    : job_(job), machine_(machine), roots_(std::move(roots)) {}

void TitanPipeline::wrap(const Module&) {
  const std::vector<std::int64_t> held = titan_stages(*job_.titan);
  const std::int64_t stages = job_.titan->stages();
  std::vector<std::unique_ptr<pipelining::Stage>> made;
  auto hooks = std::make_unique<HooksOfStages>();
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    std::unique_ptr<Strategy> sharding;
    machine_.runtime.meta = true;
    if (job_.fsdp2) {
      const Fsdp2Job units = titan_stage_units(*job_.fsdp2, held[i] == 0, held[i] == stages - 1);
      sharding = make_fsdp2(units, machine_);
      sharding->wrap(*roots_[i]);
      hooks->add(*roots_[i], machine_.hooks);
    } else {
      machine_.runtime.meta = false;
      materialize(machine_, *roots_[i]);
    }
    make_buffers(*roots_[i]);
    shardings_.push_back(std::move(sharding));
    made.push_back(make_stage(i));
  }
  machine_.runtime.program.same_on_all_ranks = false;  // stages differ
  if (job_.fsdp2) {
    hooks_ = std::move(hooks);
    machine_.hooks = hooks_.get();
  }
  const auto loss = [this](const Tensor& prediction, const Tensor& labels) {
    const model::CompiledClass* type = machine_.library.find("sum_of_losses");
    if (!type) throw std::runtime_error("the framework's file has no 'sum_of_losses'");
    ValueList locals(static_cast<std::size_t>(type->slots));
    locals[0] = Value::of(prediction);
    locals[1] = Value::of(labels);
    Value result;
    machine_.run(type->forward, nullptr, locals.data(), result);
    return result.tensor;
  };
  make_schedule(std::move(made), loss);
}

void TitanPipeline::make_buffers(const Module& root) {
  for (Module& module : machine_.modules) {
    if (&module == &root && !module.type->construct.empty()) machine_.run_construct(module);
  }
}

void TitanPipeline::make_schedule(std::vector<std::unique_ptr<pipelining::Stage>> stages,
                                  const pipelining::Loss& loss) {
  const TitanJob& titan = *job_.titan;
  const std::int64_t count = job_.accumulation;
  tensor::Runtime& runtime = machine_.runtime;
  if (titan.schedule == PipeliningSchedule::gpipe) {
    schedule_ = pipelining::make_gpipe(runtime, std::move(stages), count, loss);
  } else if (titan.schedule == PipeliningSchedule::one_forward_one_backward) {
    schedule_ = pipelining::make_one_forward_one_backward(runtime, std::move(stages), count, loss);
  } else {
    auto actions = pipelining_actions(titan_pipeline_shape(titan, count));
    schedule_ = pipelining::make_runtime(
        runtime, std::move(stages), count, loss,
        std::move(actions[static_cast<std::size_t>(titan.pipeline_rank())]));
  }
}

std::unique_ptr<pipelining::Stage> TitanPipeline::make_stage(std::size_t i) {
  const TitanJob& titan = *job_.titan;
  pipelining::StageSettings settings;
  settings.index = titan_stages(titan)[i];
  settings.stages = titan.stages();
  settings.micro_batches = job_.accumulation;
  settings.rank = static_cast<std::int32_t>(titan.rank);
  const std::int64_t width = titan.tensor * titan.data;
  const PipeliningShape shape = titan_pipeline_shape(titan, job_.accumulation);
  for (std::int64_t s = 0; s < settings.stages; ++s) {
    settings.ranks.push_back(
        static_cast<std::int32_t>(titan.rank % width + shape.rank_of(s) * width));
  }
  const std::int64_t rows = titan.sequence_parallel ? job_.sequence / titan.tensor : job_.sequence;
  settings.exchanged = {job_.micro_batch, rows, machine_.globals.integer("hidden_size")};
  settings.dtype = job_.fsdp2 ? job_.fsdp2->compute.value_or(job_.parameters) : job_.parameters;
  return std::make_unique<pipelining::Stage>(
      machine_, *roots_[i], shardings_[i] ? shardings_[i]->of_stage() : nullptr, settings);
}

std::vector<std::vector<Tensor>> TitanPipeline::optimizer_groups() const {
  std::vector<std::vector<Tensor>> groups(roots_.size());
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    for (const model::Parameter& p : machine_.parameters(*roots_[i])) {
      if (p.tensor->leaf_requires_grad) groups[i].push_back(p.tensor);
    }
  }
  return groups;
}

/// The norm over this stage's parameters, then over all stages
/// (torchtitan/distributed/utils.py, clip_grad_norm_).
Tensor TitanPipeline::clip(const std::vector<Tensor>& parameters, bool foreach) {
  return shardings_.front() ? shardings_.front()->clip(parameters, foreach)
                            : clip_gradients(parameters, foreach);
}

Value TitanPipeline::run_step(const Tensor& tokens, const Tensor& labels) {
  const std::vector<Tensor> losses = schedule_->step(tokens, labels);
  ValueList list;
  for (const Tensor& loss : losses) list.push_back(Value::of(loss));
  return list.empty() ? Value() : Value::of_list(std::move(list));
}

}  // namespace shardfit::program
