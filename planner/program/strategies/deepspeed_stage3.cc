// ZeRO stage 3: parameters, gradients and optimizer states are cut into parts of the ranks; modules
// gather their parameters around their forward and backward (deepspeed/runtime/zero/stage3.py,
// parameter_offload.py).

#include <algorithm>

#include "program/strategies/deepspeed_engine.h"
#include "program/strategies/zero3_coordinator.h"

namespace shardfit::program {
namespace {

using model::Module;
using model::Value;
using model::ValueKind;
using tensor::Scoped;
using tensor::Tensor;
using tensor::TensorBody;

class ZeroStage3;

/// What a node of a module's hooks needs.
struct HookExtra : tensor::NodeExtra {
  ParameterCoordinator* coordinator = nullptr;
  ZeroModule* module = nullptr;
};

/// PreBackwardFunctionForModule: its output's gradient is there.
void before_backward(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out) {
  auto& extra = static_cast<HookExtra&>(*node.extra);
  extra.coordinator->enter(*extra.module, false);
  out[0] = std::move(in[0]);
}

/// PostBackwardFunctionModule: the gradient of one of its inputs is there.
void after_backward_of(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out) {
  auto& extra = static_cast<HookExtra&>(*node.extra);
  if (--extra.module->gradients_remaining == 0) extra.coordinator->leave(*extra.module, false);
  out[0] = std::move(in[0]);
}

/// Trainable parameters that are updated together.
struct SubGroup {
  std::vector<ShardedParameter*> parameters;
  std::int64_t count = 0;  // of this rank
  Tensor master;
};

class ZeroStage3 : public DeepSpeedEngine, public model::ModuleHooks {
 public:
  explicit ZeroStage3(const DeepSpeedParts& parts)
      : DeepSpeedEngine(parts), shards_(parts.shards), lora_(parts.lora) {
    if (!shards_) shards_ = std::make_shared<ShardedParameters>(job_, runtime_);
    accumulation_dtype_ = job_.fp32_accumulation ? DType::f32 : dtype_;
    if (job_.overlap()) reduce_stream_ = runtime_.stream("reduce_and_partition");
  }
  ~ZeroStage3() override { machine_.hooks = nullptr; }

  void wrap(const Module& root) override {
    const std::vector<Tensor> trainable = trainable_of(root);
    const Scoped<tensor::Label> label(runtime_.label, {"zero", 0, false});
    const std::vector<model::Parameter> parameters = machine_.parameters(root_);
    if (job_.built_in && !job_.zero_init) cast(root_);
    if (fused_) dummy_overflow_ = scalar(DType::i32);
    if (job_.zero_init) shards_->keep_only(parameters);
    for (const model::Parameter& p : parameters) {
      if (!shards_->find(p.tensor)) shards_->partition(shards_->add(p.tensor));
    }
    for (ShardedParameter& p : shards_->all()) {
      p.persistent = p.count <= job_.persistence_threshold;
    }
    for (const model::Parameter& p : parameters) {
      ShardedParameter* sharded = shards_->find(p.tensor);
      if (sharded->persistent) persistent_.push_back(sharded);
    }
    coordinator_ = std::make_unique<ParameterCoordinator>(job_, *shards_, runtime_);
    if (!job_.offload_optimizer) overflow_ = runtime_.empty(Shape{1}, DType::boolean);
    for (const Tensor& p : trainable) trainable_.push_back(shards_->find(p));
    if (!trainable_.empty()) make_partitions();
    hook_modules();
    // 0.18 replaces torch's linear only inside zero.Init.
    runtime_.linear_keeps_parameters = job_.zero_init || !job_.release_0_18;
  }

  void before_forward(bool synchronize) override {
    DeepSpeedEngine::before_forward(synchronize);
    coordinator_->reset_step();
  }

  // ---- hooks of modules

  void before_forward(const Module& module, Value* arguments, std::size_t count) override {
    enter(key_of(module), arguments, count);
    if (is_root(module) && lora_) enter(second_root_, arguments, 0);
  }

  using DeepSpeedEngine::after_forward;
  void after_forward(const Module& module, Value& result) override {
    if (module.output_wants_gradient && result.kind == ValueKind::tensor &&
        !result.tensor.requires_grad()) {
      result.tensor->leaf_requires_grad = true;
    }
    if (is_root(module) && lora_) leave(second_root_, result);
    leave(key_of(module), result);
  }

  void before_unit(const Module& owner, const void* site, Value& input) override {
    enter(units_[{&owner, site}], &input, 1);
  }
  void after_unit(const Module& owner, const void* site, Value& result) override {
    leave(units_[{&owner, site}], result);
  }

  /// ZeROOrderedDict: a parameter that another module reads is gathered, and counts as that
  /// module's from then on.
  void before_read(const Module& owner, const Tensor& read) override {
    ShardedParameter* p = read ? shards_->find(read) : nullptr;
    if (!p || p->status != ShardedParameter::Status::not_available) return;
    gather_alone(*p);
    auto& own = key_of(owner).parameters;
    if (std::find(own.begin(), own.end(), p) == own.end()) own.push_back(p);
  }

  // ---- gradients

  void after_gradient(TensorBody& body) override {
    ShardedParameter& p = *trainable_[static_cast<std::size_t>(body.parameter)];
    if (elements_ + p.count > job_.reduce_bucket_size && elements_ > 0) reduce_bucket();
    add_to_bucket(p);
  }

  void backward_returned() override {
    {
      const Scoped<tensor::Label> label(runtime_.label, {"reduce_gradients", 0, true});
      reduce_bucket();
      const std::uint32_t done = runtime_.make_event();
      runtime_.record_event(done, reduce_stream_);
      runtime_.host_wait(done);
    }
    coordinator_->release_leftovers();
  }

 private:
  // ---- construction

  /// module.bfloat16(): every parameter anew, those of a module's children before its own
  /// (torch.nn.Module._apply).
  void cast(const Module& module) {
    model::for_each_child(module, [&](const Module& child) { cast(child); });
    for (std::size_t i = 0; i < module.type->spec->parameters.size(); ++i) {
      const Tensor& p = module.tensors[i];
      if (!p || p.dtype() == dtype_) continue;
      const Tensor narrow = make(p.count(), dtype_, Category::parameter, "parameter");
      runtime_.rebase(p, narrow);
      p->dtype = dtype_;
    }
  }

  /// Whether all ranks hold parts of the same sizes and so run the same program.
  bool even() const {
    const auto divides = [this](const ShardedParameter& p) { return p.count % ranks() == 0; };
    const auto& all = shards_->all();
    return !job_.release_0_18 && std::all_of(all.begin(), all.end(), divides);
  }

  void make_partitions() {
    runtime_.program.same_on_all_ranks = even();
    make_sub_groups();
    flat_ = shards_->defragment(trainable_);
    std::int64_t largest = 0;
    std::int64_t total = 0;
    Tensor converted;  // the name lives on until it is bound again
    for (SubGroup& group : groups_) {
      if (!job_.offload_optimizer) make_master(group, converted);
      largest = std::max(largest, group.count);
      total += group.count;
    }
    converted.reset();
    if (!job_.offload_optimizer) {
      // Zeros as gradients, which only Adagrad's construction looks at.
      const Tensor zeros = make(largest, master_dtype(), Category::gradient, "zeros");
    }
    std::vector<Tensor> masters;
    for (const SubGroup& group : groups_) {
      if (group.master) masters.push_back(group.master);
    }
    optimizer_->construct(masters);
    // 0.18 reports its memory here, which resets the peaks (see_memory_usage, force=True).
    if (job_.release_0_18) runtime_.mark("before_optimizer", 0, false);
    if (job_.contiguous_gradients) {
      bucket_buffer_ =
          make(job_.reduce_bucket_size, dtype_, Category::communication, "gradient_bucket");
    }
    if (!job_.offload_optimizer) {
      gradients_ = make(total, accumulation_dtype_, Category::gradient, "gradient_partition");
    }
    // Hooks are installed on gathered parameters.
    for (ShardedParameter* p : trainable_) {
      gather_alone(*p);
      shards_->partition(*p);
    }
    if (job_.release_0_18 && job_.rank == 0) {
      runtime_.mark("before_optimizer", 0, false);
    }
  }

  void gather_alone(ShardedParameter& p) { shards_->gather_now({&p}); }

  DType master_dtype() const { return job_.low_precision_states ? dtype_ : DType::f32; }

  /// _create_fp16_sub_groups: by elements of this rank.
  void make_sub_groups() {
    SubGroup group;
    for (ShardedParameter* p : trainable_) {
      group.parameters.push_back(p);
      group.count += p->part;
      if (group.count < job_.sub_group_size) continue;
      groups_.push_back(std::move(group));
      group = {};
    }
    if (!group.parameters.empty()) groups_.push_back(std::move(group));
  }

  /// tensor.to(dtype).clone(): a copy of a copy where the dtype changes.
  void make_master(SubGroup& group, Tensor& converted) {
    if (master_dtype() != dtype_) {
      converted = make(group.count, master_dtype(), Category::temporary, "to");
    }
    group.master =
        make(group.count, master_dtype(), Category::optimizer_state, "master_parameters");
  }

  void hook_modules() {
    machine_.hooks = this;
    for (Module& module : machine_.modules) {
      module.hooked = true;
      ZeroModule& own = modules_[&module];
      const std::size_t count = module.type->spec->parameters.size();
      for (std::size_t i = 0; i < count; ++i) {
        const Tensor& t = module.tensors[i];
        if (ShardedParameter* p = t ? shards_->find(t) : nullptr) own.parameters.push_back(p);
      }
    }
  }

  // ---- hooks

  bool is_root(const Module& module) const { return &module == &root_; }
  ZeroModule& key_of(const Module& module) { return modules_[&module]; }

  /// The first argument is given by position, and others that are the same tensor (self-attention
  /// by torch.nn.MultiheadAttention); the rest by name, which hooks do not see.
  void enter(ZeroModule& module, Value* arguments, std::size_t count) {
    coordinator_->enter(module, true);
    module.gradients_remaining = 0;
    if (count == 0 || arguments[0].kind != ValueKind::tensor || !runtime_.grad_enabled) return;
    const Tensor input = arguments[0].tensor;
    if (!input.requires_grad()) return;
    for (std::size_t i = 0; i < count; ++i) {
      if (arguments[i].kind != ValueKind::tensor || !(arguments[i].tensor == input)) continue;
      ++module.gradients_remaining;
      arguments[i].tensor = hooked(input, "after_backward", after_backward_of, module);
    }
  }

  void leave(ZeroModule& module, Value& result) {
    coordinator_->leave(module, true);
    hook_outputs(module, result);
  }

  void hook_outputs(ZeroModule& module, Value& value) {
    if (value.kind == ValueKind::tensor && value.tensor.requires_grad() && runtime_.grad_enabled) {
      value.tensor = hooked(value.tensor, "before_backward", before_backward, module);
    }
    if (value.kind != ValueKind::list) return;
    model::ValueList items = *value.list;
    for (Value& item : items) hook_outputs(module, item);
    value = Value::of_list(std::move(items));
  }

  Tensor hooked(const Tensor& input, const char* kind, tensor::Backward backward,
                ZeroModule& module) {
    tensor::NodeRef node = runtime_.make_node(kind, backward, 1);
    runtime_.connect(*node.get(), 0, input);
    auto extra = std::make_unique<HookExtra>();
    extra->coordinator = coordinator_.get();
    extra->module = &module;
    node->extra = std::move(extra);
    Tensor output = runtime_.alias_of(input, input.shape(), input->stride);
    runtime_.attach(node, output);
    return output;
  }

  // ---- gradients

  void add_to_bucket(ShardedParameter& p) {
    const std::uint32_t arrived = runtime_.make_event();
    if (reduce_stream_ != runtime_.current_stream) {
      runtime_.record_event(arrived, runtime_.current_stream);
      runtime_.wait_event(arrived, reduce_stream_);
    }
    Tensor& gradient = p.whole->grad;
    if (job_.contiguous_gradients && elements_ + p.count <= job_.reduce_bucket_size) {
      const Scoped<std::uint8_t> on(runtime_.current_stream, reduce_stream_);
      if (runtime_.watched()) runtime_.ran("copy", {gradient}, {gradient});
      runtime_.record_stream(gradient, reduce_stream_);
      gradient = runtime_.alias_of(bucket_buffer_, p.whole.shape(), p.whole->stride);
    }
    bucket_.push_back(&p);
    elements_ += p.count;
  }

  /// __reduce_and_partition_ipg_grads
  void reduce_bucket() {
    if (bucket_.empty()) return;
    const Scoped<const char*> kind(runtime_.label.kind, "reduce_gradients");
    const Scoped<std::uint8_t> on(runtime_.current_stream, reduce_stream_);
    std::sort(bucket_.begin(), bucket_.end(), [](auto* a, auto* b) { return a->id < b->id; });
    Tensor flat = reduce_scatter();
    std::vector<Tensor> wide;
    if (accumulation_dtype_ != dtype_) {
      for (const ShardedParameter* p : bucket_) {
        wide.push_back(make(own_share(*p), accumulation_dtype_, Category::communication, "to"));
      }
    }
    keep_partitions();
    bucket_.clear();
    elements_ = 0;
  }

  /// Elements of the own part that are not padding.
  std::int64_t own_share(const ShardedParameter& p) const {
    return std::clamp<std::int64_t>(p.count - p.part * job_.rank, 0, p.part);
  }

  /// reduce_scatter_coalesced: the parts of all ranks interleaved, unless there is one gradient
  /// that needs no padding. Without reduce_scatter the bucket is all-reduced as it is.
  Tensor reduce_scatter() {
    if (!job_.reduce_scatter && job_.contiguous_gradients && elements_ <= job_.reduce_bucket_size) {
      exchange(CollectiveKind::all_reduce, dtype_, elements_);
      return {};
    }
    std::int64_t count = 0;
    std::vector<Tensor> padding;
    for (std::int64_t rank = 0; rank < ranks(); ++rank) {
      for (const ShardedParameter* p : bucket_) {
        const std::int64_t share = std::clamp<std::int64_t>(p->count - p->part * rank, 0, p->part);
        if (share < p->part && !alone_and_even()) {
          padding.push_back(make(p->part - share, dtype_, Category::temporary, "padding"));
        }
      }
    }
    for (const ShardedParameter* p : bucket_) count += p->part * ranks();
    Tensor flat;
    if (!alone_and_even()) {
      flat = make(count, dtype_, Category::communication, "flattened_bucket");
    }
    exchange(CollectiveKind::reduce_scatter, dtype_, count);
    return flat;
  }
  bool alone_and_even() const {
    return bucket_.size() == 1 && bucket_.front()->count % ranks() == 0;
  }

  /// partition_grads: the own parts are kept in one flat tensor, or on the host.
  void keep_partitions() {
    Tensor back;  // on the device again, until the next
    for (ShardedParameter* p : bucket_) {
      Tensor& gradient = p->whole->grad;
      if (own_share(*p) == 0) {
        gradient.reset();
        continue;
      }
      if (job_.offload_optimizer) offload_partition(*p, back);
      runtime_.record_stream(gradient, reduce_stream_);
      gradient.reset();
    }
  }

  void offload_partition(const ShardedParameter& p, Tensor& back) {
    back.reset();  // the name is bound to the host's part first
    back = make(own_share(p), accumulation_dtype_, Category::communication, "offload_buffer");
    if (!boundary()) return;
    norms_.push_back(norm_on_device(own_share(p)));
    if (accumulation_dtype_ != DType::f32) {
      const Tensor wide = make(own_share(p), DType::f32, Category::temporary, "master_gradient");
    }
  }

  /// _constant_buffered_norm2
  Tensor norm_on_device(std::int64_t count) {
    Tensor square;
    {
      const Tensor norm = norm_of(count);
      square = tensor::pow_scalar(norm, 2.0);
    }
    return tensor::pow_scalar(square, 0.5);
  }

  // ---- step

  void update() override {
    coordinator_->release_all();
    if (dtype_ == DType::f16 && gradients_) check_overflow();
    Tensor norm;
    std::vector<Tensor> group_norms;  // the name lives to the step's end
    if (job_.offload_optimizer) {
      const Tensor total = scalar(DType::f32);
      exchange(CollectiveKind::all_reduce, DType::f32, 1);
    } else {
      for (const SubGroup& group : groups_) group_norms.push_back(group_norm(group));
      norm = scalar(DType::f64);
      global_norm_ = tensor::div_scalar(norm);
    }
    for (SubGroup& group : groups_) {
      if (job_.offload_optimizer) continue;
      take_gradients(group);
      clip_factor(norm);
      optimizer_->step({group.master});
      group.master->grad.reset();
    }
    norms_.clear();
    if (!persistent_.empty()) shards_->gather_now(persistent_);
  }

  /// has_overflow: isinf and isnan of all gradients, on the reducing stream.
  void check_overflow() {
    const Scoped<std::uint8_t> on(runtime_.current_stream, reduce_stream_);
    const std::int64_t count = gradients_.count();
    {
      Tensor magnitude = make(count, accumulation_dtype_, Category::temporary, "abs");
      const Tensor infinite = make(count, DType::boolean, Category::temporary, "isinf");
      magnitude.reset();
    }
    const Tensor any = scalar(DType::boolean);
    const Tensor not_a_number = make(count, DType::boolean, Category::temporary, "isnan");
  }

  Tensor group_norm(const SubGroup& group) {
    std::vector<Tensor> norms;
    for (const ShardedParameter* p : group.parameters) norms.push_back(norm_of(p->part));
    const Tensor stacked =
        runtime_.empty(Shape{static_cast<std::int64_t>(norms.size())}, DType::f64);
    const Tensor powers = tensor::pow_scalar(stacked, 2.0);
    const Tensor sum = tensor::sum_all(powers);
    exchange(CollectiveKind::all_reduce, DType::f64, 1);
    return tensor::pow_scalar(sum, 0.5);
  }

  void take_gradients(SubGroup& group) {
    std::vector<std::int64_t> parts;
    for (const ShardedParameter* p : group.parameters) parts.push_back(p->part);
    Tensor flat = flatten(parts, accumulation_dtype_, "flattened_gradients");
    if (accumulation_dtype_ == master_dtype()) {
      if (!flat) flat = runtime_.alias_of(gradients_, Shape{group.count}, Shape{1});
      group.master->grad = flat;
    } else {
      group.master->grad = make(group.count, master_dtype(), Category::gradient, "master_gradient");
    }
  }

  std::shared_ptr<ShardedParameters> shards_;
  bool lora_ = false;
  DType accumulation_dtype_;
  std::unique_ptr<ParameterCoordinator> coordinator_;
  std::map<const Module*, ZeroModule> modules_;
  std::map<std::pair<const Module*, const void*>, ZeroModule> units_;
  ZeroModule second_root_;  // peft's model around the model
  std::vector<ShardedParameter*> trainable_, persistent_;
  std::vector<SubGroup> groups_;
  Tensor flat_, gradients_, bucket_buffer_, overflow_;
  std::uint8_t reduce_stream_ = 0;
  std::vector<ShardedParameter*> bucket_;
  std::int64_t elements_ = 0;
  std::vector<Tensor> norms_;
};

}  // namespace

std::unique_ptr<Strategy> make_deepspeed_stage3(const DeepSpeedParts& parts) {
  return std::make_unique<ZeroStage3>(parts);
}

}  // namespace shardfit::program
