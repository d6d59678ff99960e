#include "program/training.h"

#include <algorithm>
#include <stdexcept>

#include "base/units.h"
#include "graph/network_graph.h"
#include "graph/trace.h"
#include "model/blame.h"
#include "model/dimensions.h"
#include "model/graph_family.h"
#include "model/machine.h"
#include "program/block_copier.h"
#include "program/clip.h"
#include "program/decay_groups.h"
#include "program/lora.h"
#include "program/lowering_words.h"
#include "program/materialize.h"
#include "program/offload.h"
#include "program/passes.h"
#include "program/recompute.h"
#include "program/repeat.h"
#include "program/strategies/titan_pipeline.h"
#include "program/strategies/titan_tensor.h"
#include "program/strategies/titan_tensor_alone.h"
#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::Globals;
using model::Library;
using model::Machine;
using model::Module;
using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Tensor;

/// What the loop of a framework's profile asks for.
class Trainer : public model::Host {
 public:
  /// `roots`: the model; of a pipeline, this rank's stages.
  Trainer(const TrainingJob& job, Runtime& runtime, Machine& machine,
          std::vector<const Module*> roots, std::shared_ptr<ShardedParameters> shards)
      : job_(job),
        runtime_(runtime),
        machine_(machine),
        roots_(std::move(roots)),
        root_(*roots_.front()),
        shards_(std::move(shards)) {}

  /// The wrapper of the job's strategy, if any: before `loaded` is read.
  void wrap() {
    if (job_.titan) {
      split_ = std::make_unique<TitanTensor>(
          runtime_, *job_.titan, machine_.globals.integer("vocab_size"), job_.fsdp2.has_value());
    }
    strategy_ = make_strategy();
    wraps_late_ = job_.titan && job_.ddp;
    if (strategy_ && !wraps_late_) strategy_->wrap(root_);
    if (runtime_.meta && !job_.data_parallel) {
      runtime_.meta = false;
      materialize(machine_, root_);
    }
    std::vector<Tensor> listed;
    for (const Module* root : roots_) {
      for (const model::Parameter& p : machine_.parameters(*root)) {
        if (p.tensor->leaf_requires_grad) listed.push_back(p.tensor);
      }
    }
    groups_ = strategy_ || job_.framework != "hf-trainer"
                  ? std::vector<std::vector<Tensor>>{}
                  : decay_groups(machine_.parameters(root_));
    trainable_ = strategy_ ? strategy_->optimized(std::move(listed)) : std::move(listed);
    if (pipeline_) groups_ = pipeline_->optimizer_groups();
    if (groups_.empty()) groups_.push_back(trainable_);
    for (std::size_t i = 0; i < trainable_.size(); ++i) {
      trainable_[i]->parameter = static_cast<std::int32_t>(i);
    }
    if (!strategy_) return;
    runtime_.after_accumulate = [this](tensor::TensorBody& body) {
      strategy_->after_gradient(body);
    };
  }

  /// Once; a framework that makes it before `loaded` does so in its own program.
  void construct_optimizer() {
    if (optimizer_ || !own_.empty()) return;
    if (job_.program == "plain-loop-4" || job_.optimizer_in_backward) {
      runtime_.after_accumulate = [this](tensor::TensorBody& body) { step_in_backward(body); };
      for (const Tensor& p : trainable_) {
        own_.push_back(make_optimizer(job_.optimizer, job_.implementation));
        own_.back()->construct({p});
      }
      return;
    }
    if (job_.deepspeed) return;  // the engine has it
    const bool on_host = strategy_ && strategy_->optimizes_on_host();
    optimizer_ = make_optimizer(on_host ? "none" : job_.optimizer, job_.implementation);
    if (job_.zero_redundancy) {
      optimizer_ = make_zero_redundancy(std::move(optimizer_), *job_.zero_redundancy);
    }
    if (tensor_alone()) {
      optimizer_ = make_titan_tensor_optimizer(std::move(optimizer_), *job_.titan, machine_, root_);
    }
    for (const auto& group : groups_) optimizer_->construct(group);
  }

  /// Nothing happens to a gradient that has been accumulated.
  bool gradients_alone() const {
    return own_.empty() && strategy_ && !strategy_->waits_for_gradients();
  }

  void begin_step(int step) {
    step_ = step;
    if (strategy_ && accumulates_unsynchronized()) strategy_->enter_no_sync();
  }

  /// So many micro-batches were copied: what counts them goes on.
  void left_out(std::int64_t passes) {
    forwards_ += passes;
    if (strategy_) strategy_->left_out(passes);
  }

  Value run(const std::string& name, Value* arguments) override {
    Value split;
    if (split_ && split_->run(name, arguments, split)) return split;
    if (name == "model") return call_model(arguments);
    if (name == "pipeline_step") return pipeline_step(arguments[0], arguments[1]);
    if (name == "phase") {
      const std::string& name_of_phase = *arguments[0].text;
      const bool live = name_of_phase == "between_steps" || name_of_phase == "live_after_forward" ||
                        name_of_phase == "after_step_with_gradients";
      runtime_.mark(*arguments[0].text, step_, live);
    } else if (name == "backward") {
      const Tensor& loss = model::tensor_of(arguments[0], "the loss");
      const Scoped<tensor::Label> label(runtime_.label, {"ones_like", 0, true});
      {
        const Tensor ones = runtime_.empty(loss.shape(), loss.dtype());
        tensor::run_backward(loss, ones);
        if (strategy_) strategy_->after_backward();
      }
      if (strategy_) strategy_->backward_returned();
    } else if (name == "scale") {
      return Value::of(scale_loss(model::tensor_of(arguments[0], "the loss")));
    } else if (name == "unscale") {
      found_infinite_ = unscale();
    } else if (name == "clip") {
      return Value::of(strategy_ ? strategy_->clip(trainable_, *job_.clip_foreach)
                                 : clip_gradients(trainable_, *job_.clip_foreach));
    } else if (name == "init_buffers") {
      if (pipeline_) return {};  // each stage made its own
      for (Module& m : machine_.modules) {
        if (!m.type->construct.empty()) machine_.run_construct(m);
      }
    } else if (name == "construct_optimizer") {
      construct_optimizer();
    } else if (name == "optimizer_step") {
      step_optimizer();
    } else if (name == "zero_grad") {
      if (job_.zero_to_none) {
        for (const Tensor& p : trainable_) p->grad.reset();
      } else {
        for (const auto& group : dtype_groups(trainable_)) foreach_ran("foreach_zero", group, 1, 1);
      }
    } else if (name == "autocast") {
      return Value::of_bool(true);  // what `with: autocast()` is given
    }
    return {};
  }

  /// The forward under autocast and, where asked for, with saved tensors on the host.
  bool within_autocast(const std::function<void()>& forward) {
    std::unique_ptr<tensor::SavedTensorHooks> hooks;
    const auto body = [&] {
      if (job_.offload == TrainingJob::Offload::none) return forward();
      hooks = offload_hooks(job_.offload == TrainingJob::Offload::pinned);
      runtime_.hooks.push_back(hooks.get());
      forward();
      runtime_.hooks.pop_back();
    };
    if (!job_.autocast) {
      body();
      return true;
    }
    tensor::Autocast& autocast = runtime_.autocast;
    const Scoped<bool> on(autocast.enabled, true);
    const Scoped<DType> dtype(autocast.dtype, *job_.autocast);
    const Scoped<bool> cache(autocast.cache_enabled, job_.autocast_cache);
    const Scoped<int> depth(autocast.depth, autocast.depth + 1);
    body();
    if (autocast.depth == 1) autocast.cache.clear();
    return true;
  }

 private:
  bool tensor_alone() const { return job_.titan && job_.titan->tensor > 1 && !job_.fsdp2; }

  std::unique_ptr<Strategy> make_strategy() {
    if (job_.deepspeed) {
      return make_deepspeed({*job_.deepspeed, machine_, root_, job_.optimizer, job_.implementation,
                             job_.accumulation, job_.parameters, job_.lora.has_value(), shards_});
    }
    if (job_.titan && job_.titan->pipeline > 1) {
      auto pipeline = std::make_unique<TitanPipeline>(job_, machine_, roots_);
      pipeline_ = pipeline.get();
      return pipeline;
    }
    if (tensor_alone()) return make_titan_tensor_alone(*job_.titan, machine_);
    if (job_.fsdp2) return make_fsdp2(*job_.fsdp2, machine_);
    if (job_.fsdp1) return make_fsdp1(*job_.fsdp1, machine_);
    if (job_.ddp) return make_ddp(*job_.ddp, machine_);
    if (job_.data_parallel) return make_data_parallel(*job_.data_parallel, machine_);
    return nullptr;
  }

  /// Only the last micro-batch of a step exchanges gradients.
  bool accumulates_unsynchronized() const {
    const bool no_sync = (job_.ddp && job_.ddp->no_sync) || (job_.fsdp2 && job_.fsdp2->no_sync) ||
                         (job_.fsdp1 && job_.fsdp1->no_sync);
    return no_sync && job_.accumulation > 1;
  }

  Value call_model(Value* arguments) {
    check(job_.stop);
    const std::size_t inputs = root_.type->input_defaults.size();
    ValueList list;
    for (std::size_t i = 0; i < std::min<std::size_t>(inputs, 5); ++i) list.push_back(arguments[i]);
    // torch.distributed._composable.replicate makes its DistributedDataParallel in the first
    // forward.
    if (std::exchange(wraps_late_, false)) strategy_->wrap(root_);
    const bool last = ++forwards_ % job_.accumulation == 0;
    const bool synchronize = !accumulates_unsynchronized() || last;
    if (strategy_) {
      strategy_->scatter(list);
      strategy_->before_forward(synchronize);
    }
    Value result = machine_.call(root_, std::move(list));
    if (strategy_) strategy_->after_forward(synchronize, result);
    return result;
  }

  Value pipeline_step(const Value& tokens, const Value& labels) {
    if (!pipeline_) throw std::runtime_error("the model is no pipeline");
    return pipeline_->run_step(model::tensor_of(tokens, "the tokens"),
                               model::tensor_of(labels, "the labels"));
  }

  void step_in_backward(tensor::TensorBody& body) {
    const auto i = static_cast<std::size_t>(body.parameter);
    own_[i]->step({trainable_[i]});
    body.grad.reset();
  }

  void step_optimizer() {
    const Scoped<tensor::Label> label(runtime_.label, {"optimizer", 0, false});
    if (!own_.empty() || (strategy_ && strategy_->step())) return;
    if (job_.grad_scaler && !found_infinite_) found_infinite_ = unscale();
    for (const auto& group : groups_) optimizer_->step(group);
    found_infinite_.reset();
  }

  /// Gradients are looked through and scaled in place, one kernel for many of them.
  Tensor unscale() {
    for (const auto& group : dtype_groups(trainable_)) foreach_ran("amp_unscale", group, 1, 2);
    return unscale_gradients(scale_);
  }

  /// The scale is a number on the device, made when the first loss is scaled
  /// (torch/amp/grad_scaler.py).
  Tensor scale_loss(const Tensor& loss) {
    const Scoped<tensor::Label> label(runtime_.label, {"grad_scaler", 0, false});
    if (!scale_) {
      scale_ = runtime_.empty({}, DType::f32);
      growth_ = runtime_.empty({}, DType::i32);
    }
    return tensor::mul(loss, scale_);
  }
  const TrainingJob& job_;
  Runtime& runtime_;
  Machine& machine_;
  std::vector<const Module*> roots_;
  const Module& root_;                         // the first
  std::shared_ptr<ShardedParameters> shards_;  // built in parts
  std::vector<Tensor> trainable_;
  std::vector<std::vector<Tensor>> groups_;  // of the optimizer; together all trainable ones
  std::unique_ptr<Strategy> strategy_;
  TitanPipeline* pipeline_ = nullptr;   // what the strategy is, of torchtitan's pipelines
  std::unique_ptr<TitanTensor> split_;  // of torchtitan's model
  bool wraps_late_ = false;
  std::int64_t forwards_ = 0;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::unique_ptr<Optimizer>> own_;
  Tensor scale_, growth_;
  Tensor found_infinite_;  // from unscaling to the scale's update
  int step_ = 0;
};

void freeze_all_but(const std::string& path, const std::vector<model::Parameter>& parameters) {
  for (const model::Parameter& p : parameters) {
    if (p.path.rfind(path + ".", 0) != 0) p.tensor->leaf_requires_grad = false;
  }
}

/// Degrees of parallelism that the model does not take.
void throw_if_any(const std::vector<DegreeFault>& faults, const spec::ModelSpec& model) {
  Diagnostics list;
  for (const DegreeFault& fault : faults) {
    list.error(model.numbers.where, fault.key + ": " + fault.message,
               {"the nearest that can be: " + std::to_string(fault.nearest)});
  }
  list.throw_if_any();
}

/// Nothing wraps the blocks, or tells one from another.
bool blocks_stand_alone(const TrainingJob& job) {
  const bool by_number = job.recompute == Recompute::every_second ||
                         job.recompute == Recompute::first_blocks ||
                         job.recompute == Recompute::chosen_blocks;
  return !by_number && !job.fsdp1 && !job.fsdp2 && !job.deepspeed && !job.titan &&
         !job.data_parallel;
}

/// What a framework's program makes before training, if it has a function for that; it lives to the
/// end.
Value run_start(const Library& library, const std::string& program, Machine& machine) {
  Value result;
  const model::CompiledClass* start = library.find(program_class(program) + "_start");
  if (!start) return result;
  ValueList locals(static_cast<std::size_t>(start->slots));
  machine.run(start->forward, nullptr, locals.data(), result);
  return result;
}

/// An evaluation beside the loop, without a graph and without dropout.
void run_metric(const Library& library, const std::string& program, Machine& machine) {
  const model::CompiledClass& metric = class_of(library, program_class(program) + "_metric");
  const tensor::Scoped<bool> grad(machine.runtime.grad_enabled, false);
  const tensor::Scoped<bool> training(machine.training, false);
  ValueList locals(static_cast<std::size_t>(metric.slots));
  Value result;
  machine.run(metric.forward, nullptr, locals.data(), result);
}

}  // namespace

Lowering::Lowering(spec::ModelSpec model, const std::string& framework,
                   const std::vector<std::string>& implementations)
    : model_(std::move(model)),
      family_(model::read_family_of(model_, {framework}, implementations)) {}

Lowering::~Lowering() = default;

Program Lowering::lower(const TrainingJob& job) const {
  check_writes(*this, job);
  try {
    return run(job, nullptr);
  } catch (const BlocksDiffer&) {
    TrainingJob plain = job;
    plain.copy_blocks = false;
    return run(plain, nullptr);
  }
}

std::vector<DegreeFault> Lowering::check(const TrainingJob& job) const {
  Globals globals;
  model::set_dimensions(*family_, model_, globals);
  if (family_->framework == "megatron") return check_megatron(job, globals);
  if (!job.titan || family_->framework != "torchtitan") return {};
  const SplitNumbers split{
      globals.integer("num_attention_heads"), globals.integer("num_key_value_heads"),
      globals.integer("intermediate_size"), job.titan->sequence_parallel ? job.sequence : 0};
  return check_titan(*job.titan, job.accumulation, globals.integer("num_hidden_layers"), split);
}

Program Lowering::run(const TrainingJob& asked, graph::ModelGraph* graph,
                      std::optional<graph::Detail> parts) const {
  if (asked.titan && family_->framework != "torchtitan") {
    throw InputError(model_.where,
                     "torchtitan's form of model type " + model_.model_type + " is not modelled");
  }
  TrainingJob job = family_->framework == "megatron" ? megatron_form(asked, model_) : asked;
  if (job.data_parallel && job.framework == "hf-trainer") {  // DataParallelJob says why
    job.autocast.reset();
    job.grad_scaler = false;
  }
  Globals globals;
  model::set_dimensions(*family_, model_, globals);
  set_job_words(job, *family_, globals);
  if (family_->framework == "megatron") set_megatron_words(job, globals);
  const std::shared_ptr<const Library> bound = model::bind_family(family_, globals);
  const Library& library = *bound;
  Runtime runtime(job.device);
  runtime.record_computes = job.record_computes;
  runtime.module_id("");
  Machine machine(runtime, library, globals);
  machine.parameter_dtype = family_->built_in == "fp32" ? DType::f32 : job.parameters;
  runtime.meta =
      job.titan || (job.fsdp2 && (job.fsdp2->built_on_meta || job.fsdp2->built_on_host)) ||
      (job.fsdp1 && job.fsdp1->built_on_host) || (job.data_parallel && job.data_parallel->gpu > 0);
  if (job.deepspeed && !job.deepspeed->zero_init) {
    machine.parameter_dtype = job.deepspeed->built_in.value_or(job.parameters);
  }
  try {
    throw_if_any(check(job), model_);
    if (family_->framework == "megatron") {
      run_megatron(job, machine, class_of(library, head_of(job, *family_).second),
                   class_of(library, program_class(job.program)));
      return std::move(runtime.program);
    }
    std::shared_ptr<ShardedParameters> shards;
    if (job.deepspeed) shards = deepspeed_zero_init(*job.deepspeed, machine);
    std::optional<graph::NetworkGraph> network;
    if (parts) network.emplace(machine, *parts);
    const model::CompiledClass& model_class = class_of(library, head_of(job, *family_).second);
    const std::vector<const Module*> roots =
        job.titan && job.titan->pipeline > 1
            ? build_titan_stages(job, machine, model_class)
            : std::vector<const Module*>{machine.build(model_class, {}, "")};
    const Module* root = roots.front();
    machine.built = nullptr;
    machine.tie();
    if (!job.deepspeed && (!family_->built_in.empty() || job.channels_last)) {
      Machine::convert(*root, job.parameters, job.channels_last);
      machine.parameter_dtype = job.parameters;
    }
    if (!job.train_only.empty()) freeze_all_but(job.train_only, machine.parameters(*root));
    if (job.lora) {
      apply_lora(*job.lora, machine, *root);
      if (job.recompute == Recompute::full) require_input_gradients(machine);
    }
    for (const Module* each : roots) count_parameters(machine.parameters(*each), runtime.program);
    Trainer trainer(job, runtime, machine, roots, std::move(shards));
    if (job.deepspeed) runtime.mark("build", 0, false);
    trainer.wrap();
    if (job.deepspeed) runtime.mark("initialize", 0, false);
    machine.host = &trainer;
    const Value started = run_start(library, job.program, machine);
    runtime.program.instructions.push_back({Action::empty_cache, 0, 0});
    runtime.mark("loaded", 0, true);
    trainer.construct_optimizer();
    machine.within = [&](const Value&, const std::function<void()>& body) {
      return trainer.within_autocast(body);
    };
    Checkpointing checkpointing(job, machine);
    std::optional<BlockCopier> copier;
    if (job.copy_blocks && blocks_stand_alone(job)) {
      copier.emplace(machine,
                     BlockCopier::Around{[&] { return trainer.gradients_alone(); }, false});
    }
    const model::CompiledClass& loop = class_of(library, program_class(job.program));
    ValueList locals(static_cast<std::size_t>(loop.slots));
    graph::Trace trace(runtime);
    if (graph) runtime.recorder = &trace;
    if (network) runtime.recorder = &*network;
    // DistributedDataParallel rebuilds its buckets in the second step, those of a static graph in
    // the third. FSDP1 settles its order of gathers over several.
    int first_alike = job.fsdp1 ? 4 : job.fsdp2 ? 3 : 2;
    if (job.ddp) first_alike = job.ddp->static_graph ? 4 : 3;
    if (job.data_parallel) first_alike = 3;  // its second pass takes another library handle
    StepRange range, range_end;
    const bool pipelined = job.titan && job.titan->pipeline > 1;  // a pass is the whole schedule
    PassLoop passes(loop, runtime.program, job.accumulation,
                    pipelined || job.metric_batches > 0 ? EqualPasses::run : job.equal_passes,
                    [&](std::int64_t count) { trainer.left_out(count); });
    for (int step = 1; step <= job.steps; ++step) {
      if (step >= first_alike && job.repeat_steps && !job.deepspeed && job.metric_batches == 0 &&
          repeat_step(runtime.program, range, step)) {
        range = {range_end.first_instruction, range_end.first_storage};
        range_end = {runtime.program.instructions.size(), runtime.program.storages.size()};
        continue;
      }
      range = {runtime.program.instructions.size(), runtime.program.storages.size()};
      runtime.program.instructions.push_back({Action::reset_peaks, 0, 0});
      trainer.begin_step(step);
      passes.run_step(machine, locals.data());
      range_end = {runtime.program.instructions.size(), runtime.program.storages.size()};
    }
    runtime.after_accumulate = nullptr;
    runtime.recorder = nullptr;
    if (copier) copier->finish();
    if (job.metric_batches > 0) run_metric(library, job.program, machine);
    if (graph) *graph = network ? network->finish() : trace.finish(machine.parameters(*root));
    return std::move(runtime.program);
  } catch (const model::ModelError& error) {
    rethrow(error, *family_, model_);
  } catch (const OverflowError& error) {
    blame_overflow(error, model_);
    throw;
  }
}

}  // namespace shardfit::program
