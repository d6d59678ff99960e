#include "program/strategies/mesh.h"

#include <algorithm>
#include <functional>

#include "tensor/ops.h"

namespace shardfit::program {

using tensor::Runtime;
using tensor::Tensor;

ModelPlaces::ModelPlaces(model::Machine& machine) {
  for (model::Module& m : machine.modules) {
    for (std::size_t i = 0; i < m.tensors.size(); ++i) {
      if (m.tensors[i]) places_.emplace_back(m.tensors[i].get(), Place{&m, i});
    }
    if (m.tensors.size() > m.type->spec->parameters.size()) with_buffers_.push_back(&m);
  }
  std::stable_sort(places_.begin(), places_.end(),
                   [](const auto& a, const auto& b) { return std::less<>()(a.first, b.first); });
}

std::vector<Place> ModelPlaces::of(const Tensor& tensor) const {
  std::vector<Place> found;
  auto at = std::lower_bound(
      places_.begin(), places_.end(), tensor.get(),
      [](const auto& place, const auto* body) { return std::less<>()(place.first, body); });
  for (; at != places_.end() && at->first == tensor.get(); ++at) {
    if (at->second.module->tensors[at->second.index] == tensor) found.push_back(at->second);
  }
  return found;
}

namespace {

/// On the host a tensor has no storage here.
void move_to_device(Runtime& runtime, const Tensor& tensor) {
  if (!tensor || tensor->storage || tensor->on_host || tensor.count() == 0) return;
  const Tensor there = runtime.empty_strided(tensor.shape(), tensor->stride, tensor.dtype());
  runtime.set_category(there, Category::parameter);
  runtime.rebase(tensor, there);
}

}  // namespace

bool is_below(const model::Module& module, const model::Module& top) {
  const std::size_t length = top.path.size();
  return length == 0 || (module.path.starts_with(top.path) &&
                         (module.path.size() == length || module.path[length] == '.'));
}

void move_to_device(Runtime& runtime, const ModelPlaces& places,
                    const std::vector<model::Parameter>& parameters,
                    const std::vector<const model::Module*>& modules) {
  for (const model::Parameter& p : parameters) {
    const tensor::Scoped<tensor::Label> label(runtime.label, {"parameter", p.module->label, false});
    move_to_device(runtime, p.tensor);
  }
  for (const model::Module* m : places.with_buffers()) {
    const bool below = std::any_of(modules.begin(), modules.end(),
                                   [&](const auto* top) { return is_below(*m, *top); });
    if (!below) continue;
    const tensor::Scoped<tensor::Label> label(runtime.label, {"parameter", m->label, false});
    const std::size_t buffers = m->type->spec->parameters.size();
    for (std::size_t i = buffers; i < m->tensors.size(); ++i) {
      move_to_device(runtime, m->tensors[i]);
    }
  }
}

Mesh mesh_of(std::int64_t first, std::int64_t count, std::int64_t step, std::int64_t rank) {
  Mesh mesh;
  for (std::int64_t i = 0; i < count; ++i) {
    mesh.ranks.push_back(static_cast<std::int32_t>(first + i * step));
  }
  mesh.rank = rank;
  return mesh;
}

namespace {

Collective collective_of(Runtime& runtime, CollectiveKind kind, const Tensor& whole,
                         const Mesh& mesh) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = whole.dtype();
  collective.bytes = whole.count() * element_size(whole.dtype());
  collective.group = runtime.group(mesh.ranks);
  return collective;
}

}  // namespace

std::uint32_t exchange(Runtime& runtime, CollectiveKind kind, const Tensor& whole,
                       const Mesh& mesh) {
  return runtime.exchange(collective_of(runtime, kind, whole, mesh), runtime.current_stream);
}

std::uint32_t exchange_aside(Runtime& runtime, CollectiveKind kind, const Tensor& whole,
                             const Mesh& mesh) {
  return runtime.exchange(collective_of(runtime, kind, whole, mesh), runtime.stream("nccl"));
}

void cast_tensors(model::Value& value, DType dtype) {
  if (value.kind == model::ValueKind::tensor && is_floating(value.tensor.dtype())) {
    value.tensor = tensor::to(value.tensor, dtype);
  } else if (value.kind == model::ValueKind::list) {
    model::ValueList items = *value.list;
    for (model::Value& item : items) cast_tensors(item, dtype);
    value = model::Value::of_list(std::move(items));
  }
}

void cast_tensors(model::Value* values, std::size_t count, DType dtype) {
  for (std::size_t i = 0; i < count; ++i) cast_tensors(values[i], dtype);
}

void copied(Runtime& runtime, const char* kind, const std::vector<Tensor>& from,
            const std::vector<Tensor>& to, int passes) {
  if (!runtime.record_computes) return;
  double bytes = 0;
  for (const auto* list : {&from, &to}) {
    for (const Tensor& t : *list) {
      if (!t->on_host) bytes += static_cast<double>(t.count() * element_size(t.dtype()));
    }
  }
  runtime.launched(kind, from.front().dtype(), passes * bytes);
}

}  // namespace shardfit::program
