#include "program/materialize.h"

namespace shardfit::program {
namespace {

using model::Module;
using model::Value;
using model::ValueKind;
using tensor::Scoped;
using tensor::Tensor;

struct Materializing {
  model::Machine& machine;
  const std::function<void(Module&, std::size_t)>& replaced;

  void all(const Module& module) {
    for (const Value& child : module.children) {
      if (child.kind == ValueKind::module) child_of(*child.module);
      if (child.kind != ValueKind::list) continue;
      for (const Value& item : *child.list) {
        if (item.kind == ValueKind::module) child_of(*item.module);
      }
    }
    for (Module& own : machine.modules) {
      if (&own != &module) continue;
      const Scoped<tensor::Label> label(machine.runtime.label, {"parameter", own.label, false});
      for (std::size_t i = 0; i < own.tensors.size(); ++i) {
        if (own.tensors[i]) one(own, i);
      }
    }
  }
  void child_of(const Module& child) {
    const bool wrapped = child.replaced_by && child.replaced_by != &child;
    all(wrapped ? *child.replaced_by : child);
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
  Materializing{machine, replaced}.all(root);
}

}  // namespace shardfit::program
