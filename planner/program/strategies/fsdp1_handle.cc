#include "program/strategies/fsdp1_handle.h"

#include <algorithm>

#include "tensor/ops.h"

namespace shardfit::program::fsdp1 {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

constexpr std::int64_t alignment = 16;  // bytes, of original parameters in the flat one

}  // namespace

Handle::Handle(const Fsdp1Job& job, const Mesh& mesh, std::vector<model::Parameter> listed,
               model::Machine& machine, const ModelPlaces& places)
    : original_dtype(listed.front().tensor.dtype()),
      compute_dtype(job.compute.value_or(original_dtype)),
      reduce_dtype(job.reduce.value_or(job.compute.value_or(original_dtype))),
      job_(job),
      mesh_(mesh),
      runtime_(machine.runtime) {
  bool trainable = false;
  for (const model::Parameter& p : listed) {
    trainable = trainable || p.tensor->leaf_requires_grad;
    if (p.tensor.dtype() != original_dtype) {
      throw model::ModelError(Location{}, "",
                              "FullyShardedDataParallel flattens parameters of one dtype only");
    }
  }
  flatten(listed, places);
  flat->leaf_requires_grad = trainable;
  if (job_.original_parameters) {
    for (const model::Parameter& p : listed) originals.push_back(p.tensor);
  } else {
    place_views();
  }
  keep_shard();
  if (job_.original_parameters) place_originals(shard_);
  // The parameters themselves are flat ones or parts of it now: the old ones go, last first.
  while (!listed.empty()) listed.pop_back();
}

/// A tensor of ones, times a number that marks it (_construct_padding_tensor).
std::int64_t Handle::pad(std::int64_t count, std::vector<Tensor>& padding) {
  const Tensor ones = runtime_.empty(Shape{count}, original_dtype);
  padding.push_back(runtime_.empty(Shape{count}, original_dtype));
  pieces_.push_back(count);
  is_padding_.push_back(true);
  return count;
}

void Handle::flatten(const std::vector<model::Parameter>& listed, const ModelPlaces& places) {
  const Scoped<bool> no_grad(runtime_.grad_enabled, false);
  const std::int64_t aligned =
      job_.original_parameters ? alignment / element_size(compute_dtype) : 1;
  std::vector<Tensor> padding;
  for (const model::Parameter& p : listed) {
    if (count_ % aligned != 0) count_ += pad(aligned - count_ % aligned, padding);
    Part part;
    part.shape = p.tensor.shape();
    part.start = count_;
    part.count = p.tensor.count();
    part.places = places.of(p.tensor);
    pieces_.push_back(part.count);
    is_padding_.push_back(false);
    count_ += part.count;
    parts_.push_back(std::move(part));
  }
  const std::int64_t ranks = mesh_.size();
  if (job_.original_parameters && count_ % ranks != 0) {
    count_ += pad(ranks - count_ % ranks, padding);
  }
  flat = runtime_.empty(Shape{count_}, original_dtype);
  runtime_.set_category(flat, Category::parameter);
}

void Handle::keep_shard() {
  if (!sharded()) {
    shard_count_ = count_;
    shard_ = runtime_.alias_of(flat, flat.shape(), flat->stride);
    return;
  }
  const std::int64_t ranks = mesh_.size();
  shard_count_ = (count_ + ranks - 1) / ranks;
  const std::int64_t own =
      std::clamp<std::int64_t>(count_ - mesh_.rank * shard_count_, 0, shard_count_);
  shard_ = runtime_.empty(Shape{own}, original_dtype);
  if (own < shard_count_) {
    const Tensor unpadded = std::move(shard_);
    shard_ = runtime_.empty(Shape{shard_count_}, original_dtype);
  }
  runtime_.set_category(shard_, Category::parameter);
  runtime_.take_memory(flat);
  if (job_.offload) shard_ = runtime_.on_host(Shape{shard_count_}, original_dtype);
  runtime_.set_data(flat, shard_);
}

void Handle::init_attributes() {
  if (mixed()) {
    low_shard_ = runtime_.empty(Shape{shard_count_}, compute_dtype);
    runtime_.set_category(low_shard_, Category::communication);
    runtime_.take_memory(low_shard_);
  }
  if (!sharded()) return;
  const Shape padded{shard_count_ * mesh_.size()};
  whole = runtime_.empty(padded, compute_dtype);
  runtime_.set_category(whole, Category::parameter);
  runtime_.take_memory(whole);
  // Where parameters are cast, one in their own dtype stands ready for evaluation.
  if (mixed()) const Tensor full_precision = runtime_.empty(padded, original_dtype);
}

bool Handle::needs_unshard() const { return sharded() && !whole->storage->has_memory; }

bool Handle::pre_unshard() {
  if (sharded() && !job_.offload && !needs_unshard()) return false;
  if (mixed()) {
    runtime_.give_memory(low_shard_);
    Tensor on_device = shard_;
    if (job_.offload) on_device = runtime_.empty(shard_.shape(), original_dtype);
    copied(runtime_, "copy", {on_device}, {low_shard_});
    runtime_.set_data(flat, low_shard_);
    return true;
  }
  if (!job_.offload || !flat->on_host) return false;
  const Tensor on_device = runtime_.empty(shard_.shape(), original_dtype);
  copied(runtime_, "copy", {on_device}, {});
  runtime_.set_data(flat, on_device);
  if (job_.original_parameters) place_originals(on_device);
  return true;
}

void Handle::alloc_whole() { runtime_.give_memory(whole); }

void Handle::use_whole() {
  const Tensor& base = sharded() ? whole : flat;
  runtime_.set_data(flat, runtime_.alias_of(base, Shape{count_}, Shape{1}));
  if (stage == Stage::forward) return place_views();
  if (!job_.original_parameters || stage != Stage::before_backward || skipped_shard_views_) return;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    for (const Place& p : parts_[i].places) p.module->tensors[p.index] = views_[i];
  }
}

/// The modules' parameters become views of the whole that autograd follows.
void Handle::place_views() {
  const Scoped<bool> grad(runtime_.grad_enabled, true);
  const std::vector<Tensor> pieces = tensor::split(flat, pieces_, 0);
  views_.clear();
  std::size_t next = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (is_padding_[i]) continue;
    const Part& part = parts_[next++];
    views_.push_back(tensor::view(pieces[i], part.shape));
    for (const Place& p : part.places) p.module->tensors[p.index] = views_.back();
  }
}

void Handle::post_unshard() {
  if (!mixed() || !sharded()) return;
  runtime_.record_stream(low_shard_, runtime_.current_stream);
  runtime_.take_memory(low_shard_);
}

std::pair<std::int64_t, std::int64_t> Handle::in_shard(const Part& part) const {
  if (!sharded()) return {part.start, part.count};
  const std::int64_t first = mesh_.rank * shard_count_;
  const std::int64_t from = std::max(part.start, first);
  const std::int64_t to = std::min(part.start + part.count, first + shard_count_);
  return {from - first, std::max<std::int64_t>(to - from, 0)};
}

void Handle::place_originals(const Tensor& shard) {
  skipped_shard_views_ = false;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const Part& part = parts_[i];
    const std::int64_t count = in_shard(part).second;
    const Shape shape = sharded() ? Shape{count} : part.shape;
    Tensor data;
    if (count == 0) {
      data = runtime_.empty(Shape{0}, original_dtype);
    } else {
      data = runtime_.alias_of(shard, shape, tensor::contiguous_strides(shape));
    }
    runtime_.set_data(originals[i], data);
    for (const Place& p : part.places) p.module->tensors[p.index] = originals[i];
  }
  if (stage == Stage::after_backward) views_.clear();
}

void Handle::use_shard() {
  const bool original = job_.original_parameters;
  const bool skip = original && runtime_.grad_on() && stage == Stage::forward && sharded() &&
                    keeps_whole_after_forward();
  runtime_.set_data(flat, shard_);
  if (!original) return;
  if (skip) {
    skipped_shard_views_ = true;
    return;
  }
  place_originals(shard_);
  if (stage != Stage::forward) return;
  const bool accumulated = flat->grad && sharded() && flat->grad.count() == count_;
  if (accumulated) {
    use_whole_gradients();
  } else {
    use_sharded_gradients();
  }
}

void Handle::free_whole() {
  runtime_.record_stream(whole, runtime_.current_stream);
  runtime_.take_memory(whole);
}

void Handle::post_reshard() {
  if (!mixed() || sharded()) return;
  runtime_.record_stream(low_shard_, runtime_.current_stream);
  runtime_.take_memory(low_shard_);
}

void Handle::set_gradient_aside() {
  if (!flat->grad || flat->grad.count() == count_) return;
  saved = std::move(flat->grad);
}

void Handle::gradient_for_optimizer() {
  Tensor shard = std::move(saved);
  if (!job_.offload && shard) flat->grad = std::move(shard);
}

void Handle::use_sharded_gradients() {
  if (!job_.original_parameters) return;
  // Offloaded gradients are copies on the host.
  const Tensor gradient = job_.offload ? Tensor() : (saved ? saved : flat->grad);
  for (std::size_t i = 0; i < originals.size(); ++i) {
    Tensor& own = originals[i]->grad;
    const std::int64_t count = in_shard(parts_[i]).second;
    if (!gradient || count == 0 || !originals[i]->leaf_requires_grad) {
      own.reset();
      continue;
    }
    const Shape shape = originals[i].shape();
    own = runtime_.alias_of(gradient, shape, tensor::contiguous_strides(shape));
  }
}

/// A parameter in the shape of its shard takes a gradient of another shape by way of an empty one.
void Handle::use_whole_gradients() {
  if (!job_.original_parameters) return;
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const Tensor& p = originals[i];
    if (!flat->grad) {
      p->grad.reset();
      continue;
    }
    const Shape& shape = parts_[i].shape;
    const bool alike = p.shape() == shape && p.dtype() == flat->grad.dtype();
    if (!alike && !p->grad) p->grad = runtime_.empty(p.shape(), p.dtype());
    p->grad = runtime_.alias_of(flat->grad, shape, tensor::contiguous_strides(shape));
  }
}

void Handle::drop_gradient_if_unused() {
  if (!job_.original_parameters) return;
  for (const Tensor& p : originals) {
    if (p->grad) return;
  }
  flat->grad.reset();
}

}  // namespace shardfit::program::fsdp1
