// FullyShardedDataParallel: the parameters of a unit are one flat tensor, of which every rank holds
// a part (torch/distributed/fsdp/fully_sharded_data_parallel.py, _runtime_utils.py).

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "program/clip.h"
#include "program/strategies/fsdp1_handle.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace fsdp1 {
namespace {

using model::Module, model::Value, model::ValueKind;
using tensor::Label, tensor::Runtime, tensor::Scoped, tensor::Shape, tensor::Tensor;
using Sharding = Fsdp1Job::Sharding;
using Prefetch = Fsdp1Job::Prefetch;

/// One rank keeps everything, whatever was asked for (_init_core_state).
Fsdp1Job settled(Fsdp1Job job) {
  if (job.ranks == 1) job.sharding = Sharding::none;
  return job;
}

struct Unit {
  const Module* module = nullptr;
  std::unique_ptr<Handle> handle;  // none where other units hold all parameters
};

class Fsdp1 : public Strategy, public model::ModuleHooks {
 public:
  Fsdp1(const Fsdp1Job& job, model::Machine& machine)
      : job_(settled(job)), machine_(machine), runtime_(machine.runtime) {
    const std::int64_t position = job_.rank % job_.ranks;
    mesh_ = mesh_of(job_.rank - position, job_.ranks, 1, position);
    copies_ = mesh_of(position, job_.replicas, job_.ranks, job_.rank / job_.ranks);
  }

  void wrap(const Module& root) override {
    const Scoped<Label> label(runtime_.label, {"parameter", 0, false});
    if (job_.built_on_host) runtime_.meta = false;
    const ModelPlaces places(machine_);
    for (Module& m : machine_.modules) {
      if (job_.blocks && m.type->spec->recompute_unit) make_unit(m, places);
    }
    for (Module& m : machine_.modules) {
      if (&m == &root) make_unit(m, places);
    }
    root_ = &units_.back();
    ordered_.push_back(root_);
    for (Unit& unit : units_) {
      if (&unit != root_) ordered_.push_back(&unit);
    }
    machine_.hooks = this;
    machine_.hooks_around_recompute = true;
  }

  std::vector<Tensor> optimized(std::vector<Tensor> listed) const override {
    if (job_.original_parameters) return listed;
    std::vector<Tensor> flat;
    for (const Unit* unit : ordered_) {
      if (unit->handle && unit->handle->trainable()) flat.push_back(unit->handle->flat);
    }
    return flat;
  }
  bool optimizes_on_host() const override { return job_.offload; }

  Tensor clip(const std::vector<Tensor>& parameters, bool foreach) override;

  void enter_no_sync() override {
    if (unshard_ == 0) first_forward();
  }
  void before_forward(bool synchronize) override { synchronize_ = synchronize; }
  void after_forward(bool, Value&) override {}

  void before_forward(const Module& module, Value* arguments, std::size_t count) override {
    Unit& unit = unit_of(module);
    if (&unit == root_) before_root(arguments, count);
    if (!unit.handle) return;
    Handle& handle = *unit.handle;
    if (!handle.forward_index) {
      handle.forward_index = forward_order_.size();
      forward_order_.push_back(&handle);
    }
    handle.stage = Stage::forward;
    if (!handle.prefetched) unshard(handle, module.label);
    handle.before_forward_due = false;
    wait_stream(runtime_.current_stream, unshard_);
    prefetch(handle);
    if (runtime_.grad_on()) watch_gradient(handle);
    if (job_.compute) cast_tensors(arguments, count, *job_.compute);
    if (runtime_.grad_on() && !handle.trainable()) watch_inputs(handle, arguments, count);
  }

  void after_forward(const Module& module, Value& result) override {
    Unit& unit = unit_of(module);
    if (unit.handle) {
      Handle& handle = *unit.handle;
      if (!handle.backward_index) handle.backward_index = backward_order_.size();
      backward_order_.push_back(&handle);
      reshard(handle, &unit != root_ && reshards_after_forward(handle));
    }
    if (runtime_.grad_on()) watch_outputs(unit, result);
    if (unit.handle) unit.handle->stage = Stage::idle;
  }

 private:
  void make_unit(Module& module, const ModelPlaces& places) {
    Unit& unit = units_.emplace_back();
    of_modules_.emplace(&module, &unit);
    unit.module = &module;
    module.hooked = true;
    std::vector<model::Parameter> listed;
    for (model::Parameter& p : machine_.parameters(module)) {
      // What another unit has flattened is a view of its flat parameter, or a part of it.
      if (p.tensor->grad_fn || is_managed(p.tensor)) continue;
      listed.push_back(std::move(p));
    }
    // _init_utils.py, _move_module_to_device, with a device_id
    if (job_.built_on_host) move_to_device(runtime_, places, listed, {&module});
    if (listed.empty()) return;
    const Scoped<Label> label(runtime_.label, {"parameter", module.label, false});
    unit.handle = std::make_unique<Handle>(job_, mesh_, std::move(listed), machine_, places);
    for (const Tensor& original : unit.handle->originals) managed_.insert(original.get());
    managed_bases_.insert(unit.handle->flat.get());
  }

  bool is_managed(const Tensor& tensor) const {
    return managed_.count(tensor.get()) > 0 || managed_bases_.count(tensor->base.get()) > 0;
  }

  Unit& unit_of(const Module& module) {
    const auto found = of_modules_.find(&module);
    if (found == of_modules_.end()) throw std::runtime_error("a module with hooks is no unit");
    return *found->second;
  }

  bool reshards_after_forward(const Handle& handle) const {
    return handle.sharded() && job_.sharding != Sharding::gradients_and_states;
  }
  bool frees_in_backward(const Handle& handle) const {
    return handle.sharded() && (synchronize_ || reshards_after_forward(handle));
  }

  void wait_stream(std::uint8_t waiting, std::uint8_t on) {
    if (waiting == on) return;
    const std::uint32_t event = runtime_.make_event();
    runtime_.record_event(event, on);
    runtime_.wait_event(event, waiting);
  }

  void before_root(Value* arguments, std::size_t count) {
    if (unshard_ == 0) first_forward();
    if (job_.prefetch_forward) {
      for (Unit* unit : ordered_) {
        if (!unit->handle) continue;
        unit->handle->before_forward_due = true;
        unit->handle->prefetched = false;
      }
    }
    wait_stream(unshard_, runtime_.current_stream);
    wait_stream(pre_unshard_, runtime_.current_stream);
    drop_unused_gradients();
    if (job_.compute) cast_tensors(arguments, count, *job_.compute);
  }

  void drop_unused_gradients() {
    for (Unit* unit : ordered_) {
      if (unit->handle) unit->handle->drop_gradient_if_unused();
    }
  }

  /// _lazy_init: streams; buffers in the compute dtype; what is allocated to be freed.
  void first_forward() {
    unshard_ = runtime_.stream("unshard");
    post_backward_ = runtime_.stream("post_backward");
    pre_unshard_ = runtime_.stream("pre_unshard");
    all_reduce_ = job_.sharding == Sharding::hybrid ? runtime_.stream("all_reduce") : 0;
    const Scoped<Label> label(runtime_.label, {"parameter", 0, false});
    if (job_.compute) {
      for (Module& m : machine_.modules) {
        for (std::size_t i = m.type->spec->parameters.size(); i < m.tensors.size(); ++i) {
          const Tensor& buffer = m.tensors[i];
          if (!buffer || !is_floating(buffer.dtype()) || buffer.dtype() == *job_.compute) continue;
          const Tensor cast = runtime_.empty(buffer.shape(), *job_.compute);
          runtime_.set_category(cast, Category::parameter);
          runtime_.set_data(buffer, cast);
        }
      }
    }
    for (Unit* unit : ordered_) {
      if (unit->handle) unit->handle->init_attributes();
    }
  }

  void unshard(Handle& handle, std::uint32_t label_module) {
    const Scoped<Label> label(runtime_.label,
                              {"all_gather", label_module, runtime_.label.backward});
    bool ran = false;
    {
      const Scoped<std::uint8_t> on(runtime_.current_stream, pre_unshard_);
      ran = handle.pre_unshard();
    }
    if (ran) wait_stream(unshard_, pre_unshard_);
    if (job_.limit_gathers && freed_.size() >= 2) {
      runtime_.host_wait(freed_.front());
      freed_.pop_front();
    }
    const Scoped<std::uint8_t> on(runtime_.current_stream, unshard_);
    if (handle.needs_unshard()) {
      handle.alloc_whole();
      exchange(runtime_, CollectiveKind::all_gather, handle.whole, mesh_);
      if (job_.offload) runtime_.record_stream(handle.flat, runtime_.current_stream);
    }
    handle.use_whole();
    handle.post_unshard();
  }

  void reshard(Handle& handle, bool free) {
    handle.use_shard();
    if (free) handle.free_whole();
    if (free && job_.limit_gathers) {
      freed_.push_back(runtime_.make_event());
      runtime_.record_event(freed_.back(), runtime_.current_stream);
    }
    handle.post_reshard();
    handle.prefetched = false;
  }

  /// Gathers the unit that comes next in this pass, where the settings say so at this stage.
  void prefetch(Handle& handle) {
    Handle* target = nullptr;
    Stage as = Stage::before_backward;
    const bool before = handle.stage == Stage::before_backward;
    const bool after = handle.stage == Stage::after_backward;
    if ((before && job_.prefetch_backward == Prefetch::before) ||
        (after && job_.prefetch_backward == Prefetch::after)) {
      if (!handle.backward_index || *handle.backward_index == 0) return;
      target = backward_order_[*handle.backward_index - 1];
      if (!target->before_backward_due || target->prefetched) return;
    } else if (handle.stage == Stage::forward && job_.prefetch_forward) {
      const std::size_t next = *handle.forward_index + 1;
      if (next >= forward_order_.size()) return;
      target = forward_order_[next];
      as = Stage::forward;
      if (!target->before_forward_due || target->prefetched) return;
    }
    if (!target) return;
    {
      const Scoped<Stage> stage(target->stage, as);
      unshard(*target, runtime_.label.module);
    }
    target->prefetched = true;
  }

  /// The hook is on the node that accumulates the flat gradient, from the first forward on.
  void watch_gradient(Handle& handle) {
    if (handle.has_hook || !handle.trainable() || !handle.flat->accumulator) return;
    handle.has_hook = true;
    handle.accumulator = tensor::NodeRef(handle.flat->accumulator);
    handle.accumulator->after.push_back([this, &handle] { gradient_arrived(handle); });
  }

  /// A unit without trainable parameters is over when its inputs' gradients are there.
  void watch_inputs(Handle& handle, Value* arguments, std::size_t count) {
    if (handle.has_hook) return;
    handle.has_hook = true;
    Tensor last;
    for (std::size_t i = 0; i < count; ++i) {
      each_gradient_tensor(arguments[i], [&](Tensor& t) {
        if (t->grad_fn) last = t;
      });
    }
    if (!last) return;
    last->grad_fn->before.push_back([this, &handle] {
      handle.stage = Stage::after_backward;
      reshard_after_backward(handle);
    });
  }

  void watch_outputs(Unit& unit, Value& result) {
    if (&unit == root_) callback_queued_ = false;
    Handle* handle = unit.handle.get();
    if (handle) {
      handle->before_backward_due = false;
      handle->ran_before_backward = false;
    }
    each_gradient_tensor(result, [&](Tensor& t) {
      if (!t->grad_fn) return;
      t->grad_fn->before.push_back([this, &unit] { before_backward(unit); });
      if (handle) handle->before_backward_due = true;
    });
  }

  void before_backward(Unit& unit) {
    Handle* handle = unit.handle.get();
    if (handle && handle->ran_before_backward) return;
    if (&unit == root_ && !callback_queued_) {
      callback_queued_ = true;
      runtime_.final_callbacks.push_back([this] { end_backward(); });
      drop_unused_gradients();
    }
    if (!handle) return;
    handle->stage = Stage::before_backward;
    if (handle->before_backward_due) {
      if (!handle->prefetched) unshard(*handle, unit.module->label);
      wait_stream(runtime_.current_stream, unshard_);
    }
    handle->before_backward_due = false;
    prefetch(*handle);
    handle->set_gradient_aside();
    handle->ran_before_backward = true;
  }

  void reshard_after_backward(Handle& handle) {
    reshard(handle, frees_in_backward(handle));
    prefetch(handle);
  }

  /// _post_backward_hook.
  void gradient_arrived(Handle& handle) {
    handle.stage = Stage::after_backward;
    if (!handle.flat->grad) return;
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const Scoped<const char*> kind(runtime_.label.kind, "reduce_scatter");
    reshard_after_backward(handle);
    if (!synchronize_) return handle.use_whole_gradients();
    wait_stream(post_backward_, runtime_.current_stream);
    const Scoped<std::uint8_t> on(runtime_.current_stream, post_backward_);
    Tensor& gradient = handle.flat->grad;
    const Tensor computed = gradient;
    if (gradient.dtype() != handle.reduce_dtype) {
      gradient = tensor::to(gradient, handle.reduce_dtype);
      runtime_.set_category(gradient, Category::communication);
    }
    if (handle.sharded()) {
      reduce(handle);
    } else {
      reduce_whole(handle);
    }
    runtime_.record_stream(computed, post_backward_);
  }

  void reduce(Handle& handle) {
    const Tensor gradient = std::move(handle.flat->grad);
    Tensor padded = gradient;
    const std::int64_t count = handle.shard_count() * mesh_.size();
    if (count != gradient.count()) {
      padded = runtime_.empty(Shape{count}, gradient.dtype());
      runtime_.set_category(padded, Category::communication);
      copied(runtime_, "pad", {gradient}, {padded});
    }
    Tensor shard = runtime_.empty(Shape{handle.shard_count()}, gradient.dtype());
    runtime_.set_category(shard, Category::gradient);
    exchange(runtime_, CollectiveKind::reduce_scatter, padded, mesh_);
    if (job_.sharding != Sharding::hybrid) return keep_gradient(handle, std::move(shard));
    wait_stream(all_reduce_, post_backward_);
    const Scoped<std::uint8_t> on(runtime_.current_stream, all_reduce_);
    runtime_.record_stream(shard, all_reduce_);
    if (copies_.size() > 1) exchange(runtime_, CollectiveKind::all_reduce, shard, copies_);
    keep_gradient(handle, std::move(shard));
  }

  void keep_gradient(Handle& handle, Tensor shard) {
    if (shard.dtype() != handle.original_dtype) {
      const Tensor low = shard;
      shard = tensor::to(low, handle.original_dtype);
      runtime_.set_category(shard, Category::gradient);
      runtime_.record_stream(low, runtime_.current_stream);
    }
    if (handle.saved) {
      copied(runtime_, "add", {handle.saved, shard}, {handle.saved});
    } else {
      handle.saved = std::move(shard);
    }
    if (job_.offload) runtime_.record_stream(handle.saved, post_backward_);
    handle.use_sharded_gradients();
  }

  /// NO_SHARD: the gradient is averaged as it is.
  void reduce_whole(Handle& handle) {
    Tensor& gradient = handle.flat->grad;
    if (mesh_.size() > 1) exchange(runtime_, CollectiveKind::all_reduce, gradient, mesh_);
    if (gradient.dtype() != handle.original_dtype) {
      const Tensor low = gradient;
      gradient = tensor::to(low, handle.original_dtype);
      runtime_.record_stream(low, runtime_.current_stream);
    }
    runtime_.set_category(gradient, Category::gradient);
    if (job_.offload) gradient.reset();
    handle.use_sharded_gradients();
  }

  /// _post_backward_final_callback.
  void end_backward() {
    if (synchronize_) {
      wait_stream(runtime_.current_stream, post_backward_);
      if (job_.sharding == Sharding::hybrid) wait_stream(runtime_.current_stream, all_reduce_);
      if (job_.offload) {
        const std::uint32_t copied_out = runtime_.make_event();
        runtime_.record_event(copied_out, runtime_.current_stream);
        runtime_.host_wait(copied_out);
      }
    }
    backward_order_.clear();
    for (Unit* unit : ordered_) {
      if (unit->handle) finish(*unit->handle);
    }
    callback_queued_ = false;
  }

  void finish(Handle& handle) {
    if (!handle.holds_shard()) reshard(handle, frees_in_backward(handle));
    if (handle.accumulator) handle.accumulator->after.clear();
    handle.accumulator = {};
    handle.has_hook = false;
    if (handle.trainable() && synchronize_) handle.gradient_for_optimizer();
    handle.ran_before_backward = false;
    handle.before_backward_due = false;
    handle.backward_index.reset();
    handle.stage = Stage::idle;
    handle.prefetched = false;
  }

  Fsdp1Job job_;
  model::Machine& machine_;
  Runtime& runtime_;
  Mesh mesh_, copies_;
  std::deque<Unit> units_;
  std::unordered_map<const Module*, Unit*> of_modules_;
  std::unordered_set<const tensor::TensorBody*> managed_, managed_bases_;
  std::vector<Unit*> ordered_;  // the root, then as the model lists them
  Unit* root_ = nullptr;
  std::vector<Handle*> forward_order_, backward_order_;
  std::deque<std::uint32_t> freed_;  // events of whole parameters let go: two may be pending
  std::uint8_t unshard_ = 0, pre_unshard_ = 0, post_backward_ = 0, all_reduce_ = 0;
  Tensor zero_;  // of the clip: made once
  bool synchronize_ = true;
  bool callback_queued_ = false;
};

/// FullyShardedDataParallel.clip_grad_norm_: norms in fp32, one by one, reduced over the ranks.
Tensor Fsdp1::clip(const std::vector<Tensor>& parameters, bool foreach) {
  const Scoped<Label> label(runtime_.label, {"clip", 0, false});
  if (!zero_) zero_ = runtime_.empty({}, DType::f32);
  if (job_.sharding == Sharding::none) return clip_gradients(parameters, foreach);
  std::vector<Tensor> gradients;
  for (const Unit* unit : ordered_) {
    if (!unit->handle) continue;
    std::vector<Tensor> own = unit->handle->originals;
    if (!job_.original_parameters) own = {unit->handle->flat};
    for (const Tensor& p : own) {
      if (p->grad) gradients.push_back(p->grad);
    }
  }
  // A rank whose part holds no gradient (of adapters, say) adds zero to the norm of all ranks.
  Tensor norm = zero_;
  if (!gradients.empty()) {
    std::vector<Tensor> norms;
    for (const Tensor& g : gradients) {
      norms.push_back(runtime_.empty({}, DType::f32));
      const auto [buffer, semaphores] = tensor::reduce_scratch(g, (1U << g.rank()) - 1, DType::f32);
      const Tensor first = buffer > 0 ? runtime_.scratch(buffer) : Tensor();
      const Tensor second = buffer > 0 ? runtime_.scratch(semaphores) : Tensor();
      copied(runtime_, "norm", {g}, {});
    }
    const Tensor stacked =
        runtime_.empty(Shape{static_cast<std::int64_t>(norms.size())}, DType::f32);
    while (!norms.empty()) norms.pop_back();
    norm = runtime_.empty({}, DType::f32);
  }
  Tensor square = tensor::mul_scalar(norm);
  exchange(runtime_, CollectiveKind::all_reduce, square, mesh_);
  Tensor total = tensor::mul_scalar(square);
  square.reset();
  Tensor shifted = tensor::add_scalar(total);
  Tensor inverse = tensor::div_scalar(shifted);
  const Tensor coefficient = tensor::mul_scalar(inverse);
  inverse.reset();
  shifted.reset();
  const Tensor clamped = tensor::mul_scalar(coefficient);
  for (const Tensor& g : gradients) {
    const Tensor cast = g.dtype() == DType::f32 ? Tensor() : tensor::to(clamped, g.dtype());
    copied(runtime_, "mul", {g}, {}, 2);
  }
  return gradients.empty() ? total : tensor::to(total, gradients.front().dtype());
}

}  // namespace
}  // namespace fsdp1

std::unique_ptr<Strategy> make_fsdp1(const Fsdp1Job& job, model::Machine& machine) {
  return std::make_unique<fsdp1::Fsdp1>(job, machine);
}

}  // namespace shardfit::program
