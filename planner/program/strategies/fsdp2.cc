// fully_shard: every rank holds a part of each parameter and gathers the whole of a block while it
// runs (torch/distributed/fsdp/_fully_shard/_fully_shard.py, _fsdp_state.py).

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "program/clip.h"
#include "program/materialize.h"
#include "program/strategies/fsdp2_group.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace fsdp2 {
namespace {

using model::Module;
using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Tensor;

Meshes meshes_of(const Fsdp2Job& job) {
  const std::int64_t position = job.rank % job.ranks;
  Meshes meshes;
  const auto global = [&](std::int64_t rank) { return job.first + rank * job.tensor; };
  meshes.shard = mesh_of(global(job.rank - position), job.ranks, job.tensor, position);
  meshes.replicate =
      mesh_of(global(position), job.replicas, job.ranks * job.tensor, job.rank / job.ranks);
  const std::int64_t few = job.reshard_ranks > 0 ? job.reshard_ranks : job.ranks;
  meshes.smaller = mesh_of(global(job.rank - job.rank % few), few, job.tensor, job.rank % few);
  const std::int64_t among = job.first % job.tensor;
  meshes.tensor = mesh_of(global(job.rank) - among, job.tensor, 1, among);
  return meshes;
}

/// The node that stands before a unit: its backward comes when all of the unit's has been
/// (RegisterPostBackwardFunction).
struct AfterBackward : tensor::NodeExtra {
  explicit AfterBackward(Group& g) : group(g) {}
  Group& group;
};

void run_after_backward(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out) {
  static_cast<AfterBackward&>(*node.extra).group.after_backward();
  for (std::size_t i = 0; i < out.size(); ++i) {
    // Gradients that nobody gave are zeros (torch.autograd.Function, materialize_grads).
    out[i] = in[i] ? in[i] : node.runtime->empty(node.inputs[i].shape, node.inputs[i].dtype);
  }
}

struct Unit {
  Unit(Shared& shared, const Meshes& meshes, std::vector<Module*> m)
      : modules(m.begin(), m.end()), group(shared, meshes, m.front()->label) {}
  std::vector<const Module*> modules;
  std::vector<const Module*> to_run;  // of several, those that this forward has not reached
  Group group;
  Stage stage = Stage::idle;
  std::vector<Unit*> next, previous;  // explicitly prefetched in forward, in backward
};

class Fsdp2 : public Strategy, public StageSharding, public model::ModuleHooks {
 public:
  Fsdp2(const Fsdp2Job& job, model::Machine& machine)
      : job_(job), meshes_(meshes_of(job)), shared_(machine), runtime_(machine.runtime) {}

  void wrap(const Module& root) override {
    const Scoped<tensor::Label> label(runtime_.label, {"parameter", 0, false});
    if (job_.built_on_host) runtime_.meta = false;
    root_path_ = root.path;
    places_.emplace(shared_.machine);
    std::vector<Unit*> of_blocks;
    for (const Fsdp2Unit& call : calls()) make_units(call, of_blocks);
    for (Module& m : shared_.machine.modules) {
      if (&m == &root) root_ = &make_unit({&m}, job_.reshard_root.value_or(false));
    }
    places_.reset();
    root_->group.to_smaller_mesh = false;
    set_prefetches(of_blocks);
    in_module_order();
    if (job_.built_on_meta) {
      runtime_.meta = false;
      materialize(shared_.machine, root, [this](Module& module, std::size_t index) {
        for (Unit& unit : units_) {
          for (Parameter& p : unit.group.parameters) {
            if (p.at(module, index)) p.replace_shard(module.tensors[index]);
          }
        }
      });
    }
    runtime_.program.same_on_all_ranks = even();
    shared_.machine.hooks = this;
    shared_.machine.hooks_around_recompute = job_.around_recompute;
  }

  bool optimizes_on_host() const override { return job_.offload; }

  /// Norms are of shards: their squares are summed over the ranks before the roots are drawn
  /// (torch/distributed/tensor/_ops/_math_ops.py, _NormPartial).
  Tensor clip(const std::vector<Tensor>& parameters, bool foreach) override {
    if (job_.offload) return {};
    if (job_.ranks == 1) return clip_gradients(parameters, foreach);
    const auto whole = [this](const Tensor& norms) {
      Tensor roots = norms_over(norms, meshes_.shard);
      return job_.tensor > 1 ? norms_over(roots, meshes_.tensor) : roots;
    };
    return clip_gradients(parameters, foreach, {whole, on_all_tensor_ranks(), {}, 0});
  }

  void before_forward(bool synchronize) override {
    for (Unit& unit : units_) unit.group.exchange_gradients = synchronize;
  }
  void after_forward(bool, Value&) override {}

  StageSharding* of_stage() override { return this; }
  void before_backward_pass() override { set_backward(false); }
  void reduce_gradients() override {
    set_backward(true);
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    for (Unit* unit : ordered_) unit->group.after_backward();
    end_backward();
  }
  void forget_passes() override {
    reshard();
    for (Unit* unit : ordered_) {
      for (Parameter& p : unit->group.parameters) p.shard->grad.reset();
    }
  }
  void unshard() override {
    for (Unit* unit : ordered_) unit->group.unshard_aside();
  }
  void await_unshard() override {
    for (Unit* unit : ordered_) unit->group.wait_for_unshard();
  }
  void reshard() override {
    for (Unit* unit : ordered_) unit->group.reshard();
  }

  void before_forward(const Module& module, Value* arguments, std::size_t count) override {
    Unit& unit = unit_of(module);
    if (unit.to_run.empty()) unit.to_run = unit.modules;
    if (unit.stage == Stage::before_backward) {  // recomputed
      if (!unit.group.holds_whole()) {
        unit.group.unshard();
        unit.group.wait_for_unshard();
      }
      return cast_inputs(arguments, count);
    }
    const bool first = unit.stage != Stage::forward;
    unit.stage = Stage::forward;
    if (first && !running_root_) start_forward(unit);
    cast_inputs(arguments, count);
    const bool entering = unit.group.stage != Stage::forward;
    unit.group.stage = Stage::forward;
    unit.group.unshard();
    unit.group.wait_for_unshard();
    if (entering && runtime_.grad_on()) watch_inputs(unit, arguments, count);
    if (!first) return;
    for (Unit* next : unit.next) next->group.prefetch(Stage::forward);
  }

  void after_forward(const Module& module, Value& result) override {
    Unit& unit = unit_of(module);
    unit.to_run.erase(std::remove(unit.to_run.begin(), unit.to_run.end(), &module),
                      unit.to_run.end());
    if (!unit.to_run.empty() || unit.stage == Stage::before_backward) return cast_output(result);
    unit.group.after_forward();
    if (runtime_.grad_on()) watch_outputs(unit, result);
    unit.stage = Stage::idle;
    if (running_root_ == &unit) {
      if (shared_.last_gather) {
        shared_.gather_streams_wait(shared_.last_gather->copied_out);
        shared_.last_gather.reset();
      }
      running_root_ = nullptr;
    }
    cast_output(result);
  }

 private:
  /// set_is_last_backward, set_reshard_after_backward, set_requires_gradient_sync
  void set_backward(bool last) {
    last_backward_ = last;
    for (Unit& unit : units_) {
      unit.group.exchange_gradients = last;
      unit.group.reshard_after_backward = last;
    }
  }

  Tensor norms_over(const Tensor& norms, const Mesh& mesh) {
    const Tensor squares = runtime_.empty(norms.shape(), norms.dtype());
    const Tensor summed = runtime_.empty(norms.shape(), norms.dtype());
    const std::uint32_t done = exchange_aside(runtime_, CollectiveKind::all_reduce, summed, mesh);
    runtime_.wait_event(done, runtime_.current_stream);
    return runtime_.empty(norms.shape(), norms.dtype());
  }

  /// All ranks are in one group, and its parts of every parameter are equal.
  bool even() const {
    if (job_.tensor > 1 || job_.replicas > 1 || meshes_.smaller.size() < job_.ranks) return false;
    const std::int64_t ranks = job_.ranks;
    return std::all_of(units_.begin(), units_.end(), [&](const Unit& unit) {
      const auto& parameters = unit.group.parameters;
      return std::all_of(parameters.begin(), parameters.end(),
                         [&](const Parameter& p) { return p.shape[0] % ranks == 0; });
    });
  }

  /// Parameters that every tensor rank has whole.
  std::size_t on_all_tensor_ranks() const {
    std::size_t count = 0;
    for (const Unit& unit : units_) {
      for (const Parameter& p : unit.group.parameters) count += p.partial_sum ? 1 : 0;
    }
    return count;
  }

  /// The modules that hold the input embedding and the head, where they do not share a weight.
  std::vector<Module*> embeddings() const {
    std::vector<Module*> found;
    for (Module& m : shared_.machine.modules) {
      const bool head = m.type->spec->is_linear && !m.path.empty() &&
                        m.path.find('.') == std::string::npos &&
                        m.path.find("head") != std::string::npos;
      const bool input = m.type->spec->name == "embedding" && found.empty();
      if (input || head) found.push_back(&m);
    }
    return found;
  }

  std::vector<Fsdp2Unit> calls() const {
    if (!job_.units.empty()) return job_.units;
    std::vector<Fsdp2Unit> calls;
    if (job_.embeddings) {
      for (const Module* m : embeddings()) calls.push_back({{m->path}, {}});
    }
    calls.push_back({{"*"}, {}});
    return calls;
  }

  void make_units(const Fsdp2Unit& call, std::vector<Unit*>& of_blocks) {
    const bool reshard = call.reshard_after_forward.value_or(job_.reshard_after_forward);
    if (call.modules.size() == 1 && call.modules[0] == "*") {
      for (Module& m : shared_.machine.modules) {
        if (m.type->spec->recompute_unit && under_root(m))
          of_blocks.push_back(&make_unit({&m}, reshard));
      }
      return;
    }
    std::vector<Module*> modules;
    for (const std::string& path : call.modules) {
      for (Module& m : shared_.machine.modules) {
        if (m.path == in_root(path) && !m.replaced_by) modules.push_back(&m);
      }
    }
    if (modules.size() < call.modules.size()) {
      throw std::runtime_error("no module '" + call.modules.back() + "' to shard");
    }
    make_unit(modules, reshard);
  }

  /// The machine may hold other stages of the model, which are other roots.
  std::string in_root(const std::string& path) const {
    return root_path_.empty() ? path : root_path_ + "." + path;
  }
  bool under_root(const Module& module) const { return module.path.rfind(in_root(""), 0) == 0; }

  Unit& make_unit(const std::vector<Module*>& modules, bool reshard) {
    Unit& unit = units_.emplace_back(shared_, meshes_, modules);
    unit.group.reshard_after_forward = reshard;
    unit.group.to_smaller_mesh = job_.reshard_ranks > 1 && job_.reshard_ranks < job_.ranks;
    std::vector<model::Parameter> listed;
    std::unordered_set<const tensor::TensorBody*> seen;
    for (Module* m : modules) {
      m->hooked = true;
      for (model::Parameter& p : shared_.machine.parameters(*m)) {
        const bool known =
            managed_.count(p.tensor.get()) > 0 || !seen.insert(p.tensor.get()).second;
        if (!known) listed.push_back(std::move(p));
      }
    }
    // _fsdp_init.py, _move_states_to_device
    if (job_.built_on_host) move_to_device(runtime_, *places_, listed, unit.modules);
    for (const model::Parameter& p : listed) {
      const tensor::Scoped<tensor::Label> label(runtime_.label,
                                                {"parameter", p.module->label, false});
      unit.group.parameters.emplace_back(p.tensor, places_->of(p.tensor), meshes_.shard, job_);
      managed_.insert(unit.group.parameters.back().shard.get());
      unit.group.parameters.back().partial_sum =
          job_.tensor > 1 && p.module->type->spec->name == job_.whole_class;
    }
    return unit;
  }

  void set_prefetches(const std::vector<Unit*>& blocks) {
    const auto count = static_cast<int>(blocks.size());
    for (int i = 0; i < count; ++i) {
      Unit& unit = *blocks[static_cast<std::size_t>(i)];
      for (int k = i + 1; k <= std::min(i + job_.prefetch_forward, count - 1); ++k) {
        unit.next.push_back(blocks[static_cast<std::size_t>(k)]);
      }
      for (int k = i - 1; k >= std::max(i - job_.prefetch_backward, 0); --k) {
        unit.previous.push_back(blocks[static_cast<std::size_t>(k)]);
      }
    }
  }

  /// Units as named_modules lists them: the root first (_lazy_init).
  void in_module_order() {
    for (Unit& unit : units_) {
      for (const Module* m : unit.modules) of_modules_[m].push_back(&unit);
    }
    std::unordered_set<const Unit*> listed;
    for (const Module& m : shared_.machine.modules) {
      const auto of_module = of_modules_.find(&m);
      if (of_module == of_modules_.end()) continue;
      for (Unit* unit : of_module->second) {
        if (listed.insert(unit).second) ordered_.push_back(unit);
      }
    }
  }

  Unit& unit_of(const Module& module) {
    const auto found = of_modules_.find(&module);
    if (found == of_modules_.end()) throw std::runtime_error("a module with hooks is no unit");
    return *found->second.front();
  }

  /// Gathers come after what the optimizer has queued (_root_pre_forward).
  void start_forward(Unit& unit) {
    running_root_ = &unit;
    if (shared_.gather == 0) {
      const auto stream = [&](const char* name) { return runtime_.stream(in_root(name)); };
      shared_.copy_in = stream("all_gather_copy_in");
      shared_.gather = stream("all_gather");
      shared_.reduce = stream("reduce_scatter");
      shared_.all_reduce = meshes_.replicate.size() > 1 ? stream("all_reduce") : 0;
      const Scoped<tensor::Label> label(runtime_.label, {"parameter", 0, false});
      for (Unit* each : ordered_) {
        for (Parameter& p : each->group.parameters) p.pad_shard();
      }
    }
    shared_.gather_streams_wait(shared_.record());
  }

  void cast_inputs(Value* arguments, std::size_t count) const {
    if (!job_.cast_inputs || !job_.compute) return;
    cast_tensors(arguments, count, *job_.compute);
  }
  void cast_output(Value& result) const {
    if (job_.output) cast_tensors(result, *job_.output);
  }

  void watch_inputs(Unit& unit, Value* arguments, std::size_t count) {
    std::vector<Tensor*> inputs;
    for (std::size_t i = 0; i < count; ++i) {
      if (arguments[i].kind == ValueKind::list) {  // the caller keeps its own list
        arguments[i] = Value::of_list(*arguments[i].list);
      }
      each_gradient_tensor(arguments[i], [&](Tensor& t) { inputs.push_back(&t); });
    }
    if (inputs.empty() || unit.group.parameters.empty()) return;
    const tensor::NodeRef node = runtime_.make_node("fsdp_after_backward", run_after_backward,
                                                    static_cast<int>(inputs.size()));
    node->extra = std::make_unique<AfterBackward>(unit.group);
    int place = 0;
    for (Tensor* t : inputs) {
      runtime_.connect(*node.get(), place++, *t);
      Tensor same = runtime_.view_of(*t, t->shape(), (*t)->stride);
      runtime_.attach(node, same);
      *t = std::move(same);
    }
  }

  void watch_outputs(Unit& unit, Value& result) {
    each_gradient_tensor(result, [&](Tensor& t) {
      if (!t->grad_fn) return;
      t->grad_fn->before.push_back([this, &unit] { before_backward(unit); });
    });
  }

  void before_backward(Unit& unit) {
    unit.stage = Stage::before_backward;
    if (!callback_queued_) {
      callback_queued_ = true;
      runtime_.final_callbacks.push_back([this] { end_backward(); });
    }
    unit.group.before_backward(unit.previous.empty());
    for (Unit* previous : unit.previous) previous->group.prefetch(Stage::before_backward);
  }

  /// Units whose inputs need no gradient have not been told that their backward is over
  /// (_root_post_backward_final_callback).
  void end_backward() {
    running_root_ = nullptr;
    for (Unit* unit : ordered_) {
      if (unit->group.stage != Stage::after_backward && !unit->group.parameters.empty()) {
        unit->group.after_backward();
      }
      unit->group.stage = Stage::idle;
      unit->stage = Stage::idle;
      if (last_backward_) unit->group.finish_backward();
    }
    callback_queued_ = false;
    if (!last_backward_) return;
    shared_.forward_order.clear();
    while (!shared_.reducing.empty()) {
      runtime_.wait_event(shared_.reducing.front().event, runtime_.current_stream);
      shared_.reducing.pop_front();
    }
  }

  Fsdp2Job job_;
  Meshes meshes_;
  Shared shared_;
  Runtime& runtime_;
  std::deque<Unit> units_;
  std::vector<Unit*> ordered_;
  std::unordered_map<const Module*, std::vector<Unit*>> of_modules_;
  std::optional<ModelPlaces> places_;                      // while units are made
  std::unordered_set<const tensor::TensorBody*> managed_;  // shards that belong to a unit
  std::string root_path_;
  Unit* root_ = nullptr;
  Unit* running_root_ = nullptr;  // of the forward that runs
  bool callback_queued_ = false;
  bool last_backward_ = true;
};

}  // namespace
}  // namespace fsdp2

std::unique_ptr<Strategy> make_fsdp2(const Fsdp2Job& job, model::Machine& machine) {
  return std::make_unique<fsdp2::Fsdp2>(job, machine);
}

}  // namespace shardfit::program
