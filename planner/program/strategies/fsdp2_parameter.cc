#include "program/strategies/fsdp2_parameter.h"

#include <algorithm>

#include "tensor/ops.h"

namespace shardfit::program::fsdp2 {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

/// No floating dtype, no cast (init_dtype_attrs).
std::optional<DType> other_than(std::optional<DType> wanted, DType have) {
  return wanted && *wanted != have && is_floating(have) ? wanted : std::nullopt;
}

}  // namespace

Parameter::Parameter(const Tensor& original, std::vector<Place> places, const Mesh& mesh,
                     const Fsdp2Job& job)
    : shape(original.shape()),
      original_dtype(original.dtype()),
      trainable(original->leaf_requires_grad),
      offload(job.offload),
      places_(std::move(places)) {
  if (shape.rank == 0) {
    throw model::ModelError(places_.front().module->type->spec->where, places_.front().module->path,
                            "fully_shard takes no parameter without dimensions");
  }
  Runtime& runtime = original.runtime();
  cast = other_than(job.compute, original_dtype);
  if (job.reduce && job.reduce != job.compute) reduce = job.reduce;
  for (int i = 1; i < shape.rank; ++i) row_ *= shape[i];
  const std::int64_t padded = padded_rows(mesh.size());
  shard_shape = shape;
  shard_shape[0] = std::clamp<std::int64_t>(shape[0] - mesh.rank * padded, 0, padded);
  padded_ = padded * row_;
  shard_data = runtime.empty(Shape{padded_}, original_dtype);
  runtime.set_category(shard_data, Category::parameter);
  if (offload) shard_data = runtime.on_host(Shape{padded_}, original_dtype);
  shard = runtime.alias_of(shard_data, shard_shape, tensor::contiguous_strides(shard_shape));
  shard->leaf_requires_grad = trainable;
  place(shard);
}

void Parameter::replace_shard(const Tensor& fresh) {
  shard = fresh;
  shard_data = fresh.runtime().alias_of(fresh, Shape{fresh.count()}, Shape{1});
}

void Parameter::pad_shard() {
  if (shard_data.count() == padded_) return;
  Runtime& runtime = shard.runtime();
  shard_data = runtime.empty(Shape{padded_}, original_dtype);
  runtime.set_category(shard_data, Category::parameter);
  runtime.rebase(shard, shard_data);
}

std::int64_t Parameter::padded_rows(std::int64_t ranks) const {
  return (shape[0] + ranks - 1) / ranks;
}

const Tensor& Parameter::gather_input() const { return held == Held::shard ? shard_data : smaller; }

void Parameter::make_gathered(std::int64_t count) {
  if (gathered) {
    gathered.runtime().give_memory(gathered);
    return;
  }
  Runtime& runtime = shard.runtime();
  gathered = runtime.empty(Shape{count}, gather_dtype());
  runtime.set_category(gathered, Category::parameter);
}

void Parameter::make_whole() {
  if (whole) return;
  whole = gathered.runtime().alias_of(gathered, shape, tensor::contiguous_strides(shape));
  whole->leaf_requires_grad = trainable;
}

void Parameter::place(const Tensor& tensor) const {
  for (const Place& p : places_) p.module->tensors[p.index] = tensor;
}

void Parameter::to_shard() {
  place(shard);
  if (gathered) gathered.runtime().take_memory(gathered);
  held = Held::shard;
}

void Parameter::to_whole() {
  place(whole);
  smaller.reset();
  held = Held::whole;
}

void Parameter::to_smaller_mesh(const Mesh& mesh) {
  Runtime& runtime = gathered.runtime();
  smaller = runtime.empty(Shape{gathered.count() / mesh.size()}, gathered.dtype());
  runtime.set_category(smaller, Category::parameter);
  copied(runtime, "clone", {smaller}, {smaller});
  place(shard);
  runtime.take_memory(gathered);
  held = Held::smaller_mesh;
}

void Parameter::widen_gradient() {
  if (!reduce || !whole->grad || whole->grad.dtype() == *reduce) return;
  const Tensor gradient = std::move(whole->grad);
  accumulated = tensor::to(gradient, *reduce);
  gradient.runtime().set_category(accumulated, Category::gradient);
}

void Parameter::add_to_accumulated() {
  if (!accumulated || !whole || !whole->grad) return;
  Runtime& runtime = accumulated.runtime();
  copied(runtime, "add", {accumulated, whole->grad}, {accumulated});
  whole->grad.reset();
}

Tensor Parameter::take_gradient() {
  if (accumulated) return std::move(accumulated);
  return whole ? std::move(whole->grad) : Tensor();
}

}  // namespace shardfit::program::fsdp2
