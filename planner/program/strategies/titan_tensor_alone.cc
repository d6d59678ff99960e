#include "program/strategies/titan_tensor_alone.h"

#include "program/clip.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::Machine;
using model::Module;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

/// Parameters whose gradients are placed otherwise than they are.
struct Placed {
  std::vector<Tensor> norms;  // whole here; gradients of this rank's tokens, or of all
  Tensor embedding;           // rows here; the gradient has all
};

Placed placed_in(const Machine& machine, const Module& root) {
  Placed placed;
  for (const model::Parameter& p : machine.parameters(root)) {
    const std::string& type = p.module->type->spec->name;
    if (type == "torch_rms_norm") placed.norms.push_back(p.tensor);
    if (type == "split_embedding") placed.embedding = p.tensor;
  }
  return placed;
}

Mesh tensor_mesh(const TitanJob& job) {
  return mesh_of(job.rank - job.tensor_rank(), job.tensor, 1, job.tensor_rank());
}

/// Partial sums of gradients, summed over tensor ranks.
std::vector<Tensor> summed(Runtime& runtime, const std::vector<Tensor>& parameters,
                           const Mesh& mesh) {
  std::vector<Tensor> sums;
  for (const Tensor& p : parameters) {
    if (!p->grad) continue;
    sums.push_back(runtime.empty(p->grad.shape(), p->grad.dtype()));
    const std::uint32_t done =
        exchange_aside(runtime, CollectiveKind::all_reduce, sums.back(), mesh);
    runtime.wait_event(done, runtime.current_stream);
  }
  return sums;
}

class TensorAlone : public Strategy {
 public:
  TensorAlone(const TitanJob& job, Machine& machine)
      : job_(job), machine_(machine), mesh_(tensor_mesh(job)) {}

  void wrap(const Module& root) override { root_ = &root; }
  void before_forward(bool) override {}
  void after_forward(bool, model::Value&) override {}

  Tensor clip(const std::vector<Tensor>& parameters, bool foreach) override {
    Runtime& runtime = machine_.runtime;
    const Placed placed = placed_in(machine_, *root_);
    ClippedParts parts;
    parts.whole_norms = [&](const Tensor& norms) {
      const Tensor squares = runtime.empty(norms.shape(), norms.dtype());
      const Tensor sum = runtime.empty(norms.shape(), norms.dtype());
      const std::uint32_t done = exchange_aside(runtime, CollectiveKind::all_reduce, sum, mesh_);
      runtime.wait_event(done, runtime.current_stream);
      return runtime.empty(norms.shape(), norms.dtype());
    };
    parts.shared = placed.norms.size() + 1;
    if (job_.sequence_parallel) {
      parts.summed = [&] { return summed(runtime, placed.norms, mesh_); };
    }
    parts.largest = placed.embedding.count() * job_.tensor;
    return clip_gradients(parameters, foreach, parts);
  }

 private:
  const TitanJob job_;
  Machine& machine_;
  Mesh mesh_;
  const Module* root_ = nullptr;
};

class TensorOptimizer : public Optimizer {
 public:
  TensorOptimizer(std::unique_ptr<Optimizer> inner, const TitanJob& job, Runtime& runtime,
                  Placed placed)
      : inner_(std::move(inner)),
        job_(job),
        runtime_(runtime),
        placed_(std::move(placed)),
        mesh_(tensor_mesh(job)) {}

  void construct(const std::vector<Tensor>& parameters) override { inner_->construct(parameters); }

  /// The kernel itself allocates nothing, so its gradients may as well be made behind it: what it
  /// makes first are states.
  void step(const std::vector<Tensor>& parameters) override {
    inner_->step(parameters);
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    Tensor rows;
    if (placed_.embedding->grad) rows = tensor::clone(placed_.embedding->grad, false);
    if (job_.sequence_parallel) summed(runtime_, placed_.norms, mesh_);
  }

 private:
  std::unique_ptr<Optimizer> inner_;
  const TitanJob job_;
  Runtime& runtime_;
  Placed placed_;
  Mesh mesh_;
};

}  // namespace

std::unique_ptr<Strategy> make_titan_tensor_alone(const TitanJob& job, Machine& machine) {
  return std::make_unique<TensorAlone>(job, machine);
}

std::unique_ptr<Optimizer> make_titan_tensor_optimizer(std::unique_ptr<Optimizer> inner,
                                                       const TitanJob& job, Machine& machine,
                                                       const Module& root) {
  return std::make_unique<TensorOptimizer>(std::move(inner), job, machine.runtime,
                                           placed_in(machine, root));
}

}  // namespace shardfit::program
