#include "program/materialize.h"

#include <unordered_map>
#include <utility>

namespace shardfit::program {
namespace {

using model::Module;
using tensor::Scoped;
using tensor::Tensor;

struct Materializing {
  model::Machine& machine;
  const std::function<void(Module&, std::size_t)>& replaced;
  std::unordered_map<const Module*, Module*> own;  // the machine's, to be changed

  void all(const Module& module) {
    model::for_each_child(module, [&](const Module& child) {
      const bool wrapped = child.replaced_by && child.replaced_by != &child;
      all(wrapped ? *child.replaced_by : child);
    });
    Module& here = *own.at(&module);
    const Scoped<tensor::Label> label(machine.runtime.label, {"parameter", here.label, false});
    for (std::size_t i = 0; i < here.tensors.size(); ++i) {
      if (here.tensors[i]) one(here, i);
    }
  }
  void one(Module& module, std::size_t index) const {
    const Tensor old = module.tensors[index];
    Tensor fresh = machine.runtime.empty(old.shape(), old.dtype());
    fresh->leaf_requires_grad = old->leaf_requires_grad;
    machine.runtime.set_category(fresh, Category::parameter);
    module.tensors[index] = fresh;
    if (replaced) replaced(module, index);
  }
};

}  // namespace

void materialize(model::Machine& machine, const Module& root,
                 const std::function<void(Module&, std::size_t)>& replaced) {
  std::unordered_map<const Module*, Module*> own;
  for (Module& module : machine.modules) own.emplace(&module, &module);
  Materializing{machine, replaced, std::move(own)}.all(root);
}

}  // namespace shardfit::program
