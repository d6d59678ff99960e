#include "program/optimizer.h"

#include <algorithm>

#include "tensor/iterator.h"

namespace shardfit::program {

using tensor::Tensor;

const std::vector<OptimizerRow>& optimizer_table() {
  static const std::vector<OptimizerRow> table = {
      {"adamw", "two states a parameter (Loshchilov, Hutter 2019)", make_adamw},
      {"adam", "as adamw: the decay of weights costs no memory at 0", make_adamw},
      {"adamw-amsgrad", "three states a parameter (Reddi et al. 2018)", make_adamw_amsgrad},
      {"sgd", "no state", make_sgd},
      {"sgd-momentum", "one state a parameter", make_sgd_momentum},
      {"adagrad", "one state a parameter, made at construction", make_adagrad},
      {"rmsprop", "one state a parameter", make_rmsprop},
      {"adafactor", "row and column factors (Shazeer, Stern 2018)", make_adafactor},
      {"adafactor-transformers", "the same, in fp32 copies a parameter at a time",
       make_transformers_adafactor},
  };
  return table;
}

namespace {

struct NoOptimizer : Optimizer {
  void step(const std::vector<Tensor>&) override {}
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, Implementation implementation) {
  if (name == "none") return std::make_unique<NoOptimizer>();
  for (const OptimizerRow& row : optimizer_table()) {
    if (name == row.name) return row.make(implementation);
  }
  return nullptr;
}

void foreach_ran(const char* kind, const std::vector<Tensor>& list, int depth, double passes) {
  if (list.empty() || !list.front().runtime().record_computes) return;
  constexpr std::int64_t chunk = 65536;
  constexpr std::int64_t most_blocks = 320;
  constexpr std::int64_t most_tensors[] = {110, 64, 48, 36, 30};
  std::int64_t blocks = 0;
  double elements = 0;
  for (const Tensor& t : list) {
    blocks += (t.count() + chunk - 1) / chunk;
    elements += static_cast<double>(t.count());
  }
  const auto size = static_cast<std::int64_t>(list.size());
  const std::int64_t tensors = most_tensors[std::clamp(depth, 1, 5) - 1];
  const std::int64_t launches = std::max(
      {std::int64_t{1}, (blocks + most_blocks - 1) / most_blocks, (size + tensors - 1) / tensors});
  const DType dtype = list.front().dtype();
  list.front().runtime().launched(
      kind, dtype, passes * elements * static_cast<double>(element_size(dtype)), launches);
}

void each_ran(const char* kind, const std::vector<Tensor>& list, int operators, double passes) {
  for (const Tensor& t : list) {
    if (!t->grad) continue;
    const double bytes = static_cast<double>(t.count() * element_size(t.dtype()));
    for (int i = 0; i < operators; ++i) {
      t.runtime().launched(kind, t.dtype(), passes / operators * bytes);
    }
  }
}

/// Made in the first step only: the clock's steps are later ones.
Tensor state_like(const Tensor& like) {
  Tensor state = tensor::elementwise_empty("optimizer_state", {like}, like.dtype());
  like.runtime().set_category(state, Category::optimizer_state);
  return state;
}

Tensor state_of(tensor::Runtime& runtime, const tensor::Shape& shape, DType dtype) {
  Tensor state = runtime.empty(shape, dtype);
  runtime.set_category(state, Category::optimizer_state);
  return state;
}

std::vector<std::vector<Tensor>> dtype_groups(const std::vector<Tensor>& parameters) {
  std::vector<std::vector<Tensor>> groups;
  for (const Tensor& p : parameters) {
    if (!p->grad) continue;
    std::size_t i = 0;
    while (i < groups.size() && groups[i].front().dtype() != p.dtype()) ++i;
    if (i == groups.size()) groups.emplace_back();
    groups[i].push_back(p);
  }
  // torch groups in a hash map, which hands out the key added last first
  // (ForeachUtils.h, _group_tensors_by_first_tensors_device_and_dtype; libstdc++'s unordered_map).
  std::reverse(groups.begin(), groups.end());
  return groups;
}

std::vector<Tensor> list_like(const std::vector<Tensor>& list, const char* kind) {
  std::vector<Tensor> out;
  out.reserve(list.size());
  for (const Tensor& t : list) out.push_back(tensor::elementwise_empty(kind, {t}, t.dtype()));
  foreach_ran(kind, list, 2, 2);
  return out;
}

}  // namespace shardfit::program
