#include "program/equal_blocks.h"

#include <algorithm>
#include <map>
#include <string>

#include "model/equal.h"

namespace shardfit::program {

using model::Machine;
using model::Module;
using model::Value;
using model::ValueKind;
using tensor::Tensor;

namespace {

/// Each has its storage for itself, or both lie in one, a buffer.
bool alike_held(const tensor::Storage* a, const tensor::Storage* b) {
  if (!a || !b) return !a && !b;
  return a == b || (a->references == 1 && b->references == 1);
}

/// Alike, and not the same.
bool alike(const Tensor& a, const Tensor& b) {
  if (!a || !b) return !a && !b;
  return !(a == b) && a.shape() == b.shape() && a->stride == b->stride && a.dtype() == b.dtype() &&
         a->leaf_requires_grad == b->leaf_requires_grad && a->on_host == b->on_host &&
         a->replaceable == b->replaceable && !a->base && !b->base &&
         alike_held(a->storage, b->storage);
}

/// A unit's modules in their order.
struct Listed {
  std::vector<const Module*> modules;
  std::map<const Module*, std::size_t> place;

  /// One and all below it, what an adapter holds and what stands for it, each once.
  void add(const Module& module, const std::string& unit) {
    if (!place.emplace(&module, modules.size()).second) return;
    modules.push_back(&module);
    for (const Value& constant : module.constants) {
      const bool own =
          constant.kind == ValueKind::module && constant.module->path.rfind(unit + ".", 0) == 0;
      if (own) add(*constant.module, unit);
    }
    model::for_each_child(module, [&](const Module& child) { add(child, unit); });
    if (module.replaced_by) add(*module.replaced_by, unit);
  }
};

/// Units that differ in nothing but which tensors they have.
class Alike {
 public:
  Alike(const Listed& a, const Listed& b) : a_(a), b_(b) {}
  bool all() const {
    return std::equal(a_.modules.begin(), a_.modules.end(), b_.modules.begin(), b_.modules.end(),
                      [this](const Module* x, const Module* y) { return modules(*x, *y); });
  }

 private:
  /// Modules of the units correspond by their places, others are shared.
  bool values(const Value& a, const Value& b) const {
    if (a.kind != b.kind) return false;
    const auto same = [this](const Value& x, const Value& y) { return values(x, y); };
    if (a.kind == ValueKind::list) {
      return std::equal(a.list->begin(), a.list->end(), b.list->begin(), b.list->end(), same);
    }
    if (a.kind != ValueKind::module) return model::equal(a, b);
    const auto of_a = a_.place.find(a.module);
    const auto of_b = b_.place.find(b.module);
    if (of_a == a_.place.end() || of_b == b_.place.end()) return a.module == b.module;
    return of_a->second == of_b->second;
  }
  bool modules(const Module& a, const Module& b) const {
    const auto same = [this](const Value& x, const Value& y) { return values(x, y); };
    const auto same_tensors = [](const Tensor& x, const Tensor& y) { return alike(x, y); };
    return a.type == b.type && !a.hooked && !b.hooked &&
           a.output_wants_gradient == b.output_wants_gradient && !a.replaced_by == !b.replaced_by &&
           std::equal(a.constants.begin(), a.constants.end(), b.constants.begin(),
                      b.constants.end(), same) &&
           std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
                      same) &&
           std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                      same_tensors);
  }

  const Listed& a_;
  const Listed& b_;
};

/// The path of the module a module is in.
std::string parent(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

std::map<const Module*, EqualBlock> equal_blocks(const Machine& machine) {
  std::map<const Module*, EqualBlock> blocks;
  std::vector<std::vector<EqualBlock*>> rows;
  // The last unit under each module; units lie in units, too.
  struct Last {
    std::size_t row = 0;
    Listed listed;
  };
  std::map<std::string, Last> under;
  for (const Module& module : machine.modules) {
    if (!module.type->spec->recompute_unit) continue;
    EqualBlock& block = blocks[&module];
    block.module = &module;
    Listed listed;
    listed.add(module, module.path);
    for (const Module* one : listed.modules) {
      block.labels.push_back(one->label);
      block.tensors.insert(block.tensors.end(), one->tensors.begin(), one->tensors.end());
    }
    const auto [last, first] = under.try_emplace(parent(module.path));
    if (first || !Alike(last->second.listed, listed).all()) {
      last->second.row = rows.size();
      rows.emplace_back();
    }
    last->second.listed = std::move(listed);
    std::vector<EqualBlock*>& row = rows[last->second.row];
    block.row = last->second.row;
    block.place = row.size();
    if (!row.empty()) block.before = row.back();
    row.push_back(&block);
  }
  for (const auto& row : rows) {
    for (EqualBlock* block : row) block->length = row.size();
  }
  return blocks;
}

}  // namespace shardfit::program
