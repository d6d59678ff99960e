#include "program/recompute.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "program/strategies/mesh.h"
#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::Machine;
using model::Module;
using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Packed;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Tensor;

/// Autocast as it was in the forward, with a cache of its own: recomputation runs on autograd's
/// thread.
class AutocastAgain {
 public:
  AutocastAgain(Runtime& runtime, bool enabled, bool cache)
      : autocast_(runtime.autocast),
        enabled_(autocast_.enabled, enabled),
        cache_(autocast_.cache_enabled, cache),
        depth_(autocast_.depth, autocast_.depth + 1) {}
  ~AutocastAgain() {
    if (autocast_.depth == 1) autocast_.cache.clear();
  }
  AutocastAgain(const AutocastAgain&) = delete;
  AutocastAgain& operator=(const AutocastAgain&) = delete;

 private:
  tensor::Autocast& autocast_;
  Scoped<bool> enabled_, cache_;
  Scoped<int> depth_;
};

/// Outputs of chosen operators, kept in the forward and handed out once in the recomputation
/// (checkpoint.py, _CachingTorchDispatchMode and _CachedTorchDispatchMode).
class SelectiveStorage {
 public:
  explicit SelectiveStorage(Recompute policy) : policy_(policy) {}

  struct Caching : tensor::OperatorMode {
    explicit Caching(SelectiveStorage& s) : storage(s) {}
    std::vector<Tensor> before(const char*) override { return {}; }
    void after(const char* kind, const std::vector<Tensor>& outputs) override {
      const int index = counts[kind]++;
      if (!storage.saves(kind, products)) return;
      std::vector<Tensor> kept;
      for (const Tensor& t : outputs) {
        kept.push_back(tensor::detach(t));
        keep_as_activation(t);
      }
      storage.kept_[{kind, index}] = std::move(kept);
    }
    SelectiveStorage& storage;
    std::map<std::string, int> counts;
    int products = 0;
  };

  struct Cached : tensor::OperatorMode {
    explicit Cached(SelectiveStorage& s) : storage(s) {}
    std::vector<Tensor> before(const char* kind) override {
      const auto it = storage.kept_.find({kind, counts[kind]++});
      if (it == storage.kept_.end()) return {};
      std::vector<Tensor> outputs = std::move(it->second);
      storage.kept_.erase(it);
      return outputs;
    }
    void after(const char*, const std::vector<Tensor>&) override {}
    SelectiveStorage& storage;
    std::map<std::string, int> counts;
  };

  static void keep_as_activation(const Tensor& t) {
    if (!t->storage) return;
    StorageInfo& info = t.runtime().info(t);
    if (info.category == Category::temporary) info.category = Category::activation;
  }

 private:
  bool saves(const char* kind, int& products) const {
    if (std::strstr(kind, "attention")) return true;
    if (std::strcmp(kind, "reduce_scatter") == 0) {  // torchtitan's list, _op_sac_save_list
      return policy_ == Recompute::save_attention_matmul_half;
    }
    if (std::strcmp(kind, "mm") != 0 && std::strcmp(kind, "addmm") != 0 &&
        std::strcmp(kind, "bmm") != 0) {
      return false;
    }
    if (policy_ == Recompute::save_attention_matmul) return true;
    if (policy_ == Recompute::save_attention_matmul_half) return ++products % 2 == 1;
    return false;
  }

  Recompute policy_;
  std::map<std::pair<std::string, int>, std::vector<Tensor>> kept_;
};

bool selective(Recompute policy) {
  return policy == Recompute::save_attention || policy == Recompute::save_attention_matmul ||
         policy == Recompute::save_attention_matmul_half;
}

/// Whole blocks, some of them.
bool by_number(Recompute policy) {
  return policy == Recompute::every_second || policy == Recompute::first_blocks ||
         policy == Recompute::chosen_blocks;
}

struct Holder;

/// A module and what is in it as they stand: a copy that DataParallel made for the pass, which goes
/// when nobody holds it.
class HeldModule {
 public:
  HeldModule() = default;
  HeldModule(Machine& machine, const Module& module) {
    for (Module& each : machine.modules) {
      if (!is_below(each, module)) continue;
      for (std::size_t i = 0; i < each.tensors.size(); ++i) {
        if (each.tensors[i]) held_.emplace_back(Place{&each, i}, each.tensors[i]);
      }
    }
  }
  /// The model has what is held, and the other way round.
  void exchange() {
    for (auto& [place, tensor] : held_) std::swap(place.module->tensors[place.index], tensor);
  }

 private:
  std::vector<std::pair<Place, Tensor>> held_;
};

/// One checkpointed call (checkpoint.py, _CheckpointFrame).
struct Frame : std::enable_shared_from_this<Frame> {
  Machine& machine;
  const Module& module;
  ValueList arguments;   // the named ones; the first, positional one is empty here
  tensor::Saved hidden;  // kept as autograd keeps tensors: outer hooks see it
  bool hidden_wants_gradient = false;
  HeldModule copy;
  bool autocast, cache;
  std::unique_ptr<SelectiveStorage> selective;
  std::vector<std::weak_ptr<Holder>> holders;
  std::size_t recomputed = 0;
  bool done = false;
  bool early_stop = true;

  Frame(Machine& m, const Module& target, ValueList args)
      : machine(m),
        module(target),
        arguments(std::move(args)),
        autocast(m.runtime.autocast.enabled),
        cache(m.runtime.autocast.cache_enabled) {
    if (arguments[0].kind == ValueKind::tensor) {
      hidden.keep(arguments[0].tensor);
      hidden_wants_gradient = arguments[0].tensor.requires_grad();
      arguments[0] = {};
    }
    for (const Value& v : arguments) {
      if (v.kind == ValueKind::tensor) SelectiveStorage::keep_as_activation(v.tensor);
    }
  }
  void recompute();
};

/// Stands in a node for a tensor that will be made again.
struct Holder : Packed {
  explicit Holder(std::shared_ptr<Frame> f) : frame(std::move(f)) {}
  Tensor unpack() override {
    if (!frame->done) frame->recompute();
    return std::move(value);
  }
  std::shared_ptr<Frame> frame;
  Tensor value;
};

struct ForwardHooks : tensor::SavedTensorHooks {
  explicit ForwardHooks(std::shared_ptr<Frame> f) : frame(std::move(f)) {}
  std::shared_ptr<Packed> pack(const Tensor&) override {
    auto holder = std::make_shared<Holder>(frame);
    frame->holders.push_back(holder);
    return holder;
  }
  std::shared_ptr<Frame> frame;
};

struct PackedTensor : Packed {
  explicit PackedTensor(Tensor t) : value(std::move(t)) {}
  Tensor unpack() override { return value; }
  Tensor value;
};

/// Gives each recomputed tensor to its holder and stops when the last one is there.
struct RecomputeHooks : tensor::SavedTensorHooks {
  explicit RecomputeHooks(Frame& f) : frame(f) {}
  std::shared_ptr<Packed> pack(const Tensor& tensor) override {
    Tensor x = tensor.requires_grad() ? tensor::detach(tensor) : tensor;
    const std::size_t index = frame.recomputed++;
    if (index < frame.holders.size()) {
      if (const auto holder = frame.holders[index].lock()) holder->value = x;
    }
    if (frame.early_stop && frame.recomputed == frame.holders.size()) {
      tensor.runtime().stop();
      return nullptr;
    }
    return std::make_shared<PackedTensor>(std::move(x));
  }
  Frame& frame;
};

void Frame::recompute() {
  Runtime& runtime = machine.runtime;
  done = true;
  ValueList inputs = arguments;
  if (!hidden.empty()) {
    const Tensor input = hidden.get();
    input->leaf_requires_grad = hidden_wants_gradient;
    inputs[0] = Value::of(input);
  }
  RecomputeHooks hooks(*this);
  runtime.hooks.push_back(&hooks);
  std::unique_ptr<SelectiveStorage::Cached> mode;
  if (selective) mode = std::make_unique<SelectiveStorage::Cached>(*selective);
  {
    const Scoped<bool> grad(runtime.grad_enabled, true);
    const AutocastAgain again(runtime, autocast, cache);
    const Scoped<tensor::OperatorMode*> operators(runtime.mode, mode.get());
    copy.exchange();
    machine.forward(module, inputs);
    copy.exchange();
  }
  runtime.hooks.pop_back();
  if (runtime.stopped()) runtime.resume();
}

struct Checkpointed {
  Recompute policy;
  bool early_stop;
  bool copied;  // the module is a copy
};

Value checkpointed(Machine& machine, const Module& module, ValueList arguments,
                   const Checkpointed& how) {
  Runtime& runtime = machine.runtime;
  const Recompute policy = how.policy;
  auto frame = std::make_shared<Frame>(machine, module, arguments);
  frame->early_stop = how.early_stop;
  if (how.copied) frame->copy = HeldModule(machine, module);
  if (selective(policy)) frame->selective = std::make_unique<SelectiveStorage>(policy);
  ForwardHooks hooks(frame);
  std::unique_ptr<SelectiveStorage::Caching> mode;
  if (frame->selective) mode = std::make_unique<SelectiveStorage::Caching>(*frame->selective);
  runtime.hooks.push_back(&hooks);
  const Scoped<tensor::OperatorMode*> operators(runtime.mode, mode ? mode.get() : runtime.mode);
  Value result = machine.forward(module, arguments);
  runtime.hooks.pop_back();
  return result;
}

/// CheckpointFunction: the forward runs without a graph; the backward builds one and runs it
/// inside.
struct ReentrantExtra : tensor::NodeExtra {
  Machine* machine = nullptr;
  const Module* module = nullptr;
  ValueList arguments;  // those that are saved are empty here
  std::vector<std::size_t>
      places;  // of the saved ones: the hidden states, what else wants a gradient
  bool autocast = false, cache = true;
};

Tensor first_tensor(const Value& v) {
  if (v.kind == ValueKind::tensor) return v.tensor;
  if (v.kind == ValueKind::list) {
    for (const Value& item : *v.list) {
      if (item.kind == ValueKind::tensor) return item.tensor;
    }
  }
  return {};
}

void reentrant_backward(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out) {
  auto& extra = static_cast<ReentrantExtra&>(*node.extra);
  Runtime& runtime = *node.runtime;
  ValueList inputs = extra.arguments;
  for (std::size_t i = 0; i < extra.places.size(); ++i) {
    const auto at = static_cast<int>(i);
    const Tensor input = tensor::detach(node.load(at));
    input->leaf_requires_grad = node.wants(at);
    inputs[extra.places[i]] = Value::of(input);
  }
  Value outputs;
  {
    const Scoped<bool> grad(runtime.grad_enabled, true);
    const AutocastAgain again(runtime, extra.autocast, extra.cache);
    outputs = extra.machine->forward(*extra.module, inputs);
  }
  tensor::run_backward(first_tensor(outputs), in[0]);
  for (std::size_t i = 0; i < extra.places.size(); ++i) {
    out[i] = inputs[extra.places[i]].tensor->grad;
  }
}

Value reentrant(Machine& machine, const Module& module, ValueList arguments) {
  Runtime& runtime = machine.runtime;
  const Tensor hidden = arguments[0].tensor;
  tensor::NodeRef node;
  if (hidden.requires_grad()) {
    auto extra = std::make_unique<ReentrantExtra>();
    extra->places.push_back(0);
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const bool wants =
          arguments[i].kind == ValueKind::tensor && arguments[i].tensor.requires_grad();
      if (wants) extra->places.push_back(i);
    }
    node =
        runtime.make_node("checkpoint", reentrant_backward, static_cast<int>(extra->places.size()));
    for (std::size_t i = 0; i < extra->places.size(); ++i) {
      const Tensor& input = arguments[extra->places[i]].tensor;
      runtime.connect(*node.get(), static_cast<int>(i), input);
      node->save(input);
    }
    extra->machine = &machine;
    extra->module = &module;
    extra->arguments = arguments;
    for (const std::size_t place : extra->places) extra->arguments[place] = {};
    extra->autocast = runtime.autocast.enabled;
    extra->cache = runtime.autocast.cache_enabled;
    node->extra = std::move(extra);
  }
  Value result;
  {
    const Scoped<bool> no_grad(runtime.grad_enabled, false);
    result = machine.forward(module, arguments);
  }
  const Tensor output = first_tensor(result);
  if (node && output) runtime.attach(node, output);
  return result;
}

}  // namespace

struct Checkpointing::State {
  std::int64_t calls = 0;
  std::map<const Module*, std::int64_t> order;
};

Checkpointing::Checkpointing(const TrainingJob& job, Machine& machine)
    : machine_(machine), state_(std::make_unique<State>()) {
  State& state = *state_;
  const Recompute policy = job.recompute;
  if (policy == Recompute::none) return;
  const bool is_reentrant = job.reentrant;
  const std::int64_t first = job.recompute_blocks;
  const Checkpointed how{policy, job.early_stop, job.data_parallel.has_value()};
  const std::int64_t from = job.recompute_from;
  const std::vector<std::int64_t> chosen = job.chosen_blocks;
  machine.recompute = [=, &machine, &state](const Module& module, ValueList arguments) {
    if (by_number(policy)) {
      const auto [it, fresh] = state.order.emplace(&module, state.calls);
      if (fresh) ++state.calls;
      const std::int64_t number = it->second;
      const bool whole = policy == Recompute::first_blocks ? number < first
                         : policy == Recompute::chosen_blocks
                             ? std::binary_search(chosen.begin(), chosen.end(), number)
                             : number % 2 == from;
      if (!whole) return machine.forward(module, arguments);
    }
    if (is_reentrant) return reentrant(machine, module, std::move(arguments));
    return checkpointed(machine, module, std::move(arguments), how);
  };
}

Checkpointing::~Checkpointing() { machine_.recompute = nullptr; }

}  // namespace shardfit::program
