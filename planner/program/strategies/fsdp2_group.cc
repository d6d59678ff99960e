#include "program/strategies/fsdp2_group.h"

#include <algorithm>

#include "program/strategies/fsdp2_copies.h"
#include "tensor/ops.h"

namespace shardfit::program::fsdp2 {

using tensor::Label;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

void Shared::gather_streams_wait(std::uint32_t event) {
  runtime.wait_event(event, copy_in);
  runtime.wait_event(event, gather);
}

std::uint32_t Shared::record() {
  const std::uint32_t event = runtime.make_event();
  runtime.record_event(event, runtime.current_stream);
  return event;
}

const Mesh& Group::gather_mesh() const {
  return !parameters.empty() && parameters[0].held == Held::smaller_mesh ? meshes_.smaller
                                                                         : meshes_.shard;
}

void Group::start_unshard(bool aside) {
  if (gathering_ || holds_whole() || parameters.empty()) return;
  if (resharded_) {
    shared_.gather_streams_wait(*resharded_);
    resharded_.reset();
  }
  const Scoped<Label> label(runtime_.label, {"all_gather", label_, runtime_.label.backward});
  if (gather_mesh().size() == 1) {
    gathering_ = std::make_shared<Gathering>();
    gathering_->event = shared_.record();
  } else {
    gathering_ = all_gather(aside);
  }
}

/// Shards in the compute dtype: one flat tensor for those that are cast
/// (_get_param_all_gather_inputs).
std::vector<Tensor> Group::gather_inputs(Tensor& flat) const {
  std::vector<Tensor> inputs(parameters.size());
  std::int64_t count = 0;
  DType dtype = DType::f32;
  std::vector<Tensor> cast;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.cast && !p.offload) {
      count += p.gather_input().count();
      if (cast.empty()) dtype = *p.cast;
      cast.push_back(p.gather_input());
      continue;
    }
    inputs[i] = p.gather_input();
    if (p.offload) {
      const Tensor& on_host = p.gather_input();
      inputs[i] = runtime_.empty(on_host.shape(), on_host.dtype());
    }
    if (inputs[i].dtype() != p.gather_dtype()) inputs[i] = tensor::to(inputs[i], p.gather_dtype());
  }
  if (cast.empty()) return inputs;
  flat = runtime_.empty(Shape{count}, dtype);
  copied(runtime_, "foreach_copy", cast, {flat});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!p.cast || p.offload) continue;
    const Shape part{p.gather_input().count()};
    inputs[i] = runtime_.alias_of(flat, part, Shape{1});
  }
  return inputs;
}

/// get_all_gather_streams
std::shared_ptr<Gathering> Group::all_gather(bool aside) const {
  const std::uint8_t copy_in = aside ? runtime_.current_stream : shared_.copy_in;
  auto gathering = std::make_shared<Gathering>();
  const Scoped<bool> no_grad(runtime_.grad_enabled, false);
  std::vector<Tensor> inputs;
  Tensor flat;
  const Mesh& mesh = gather_mesh();
  {
    const Scoped<std::uint8_t> on(runtime_.current_stream, copy_in);
    inputs = gather_inputs(flat);
    // Inputs of different dtypes are gathered as bytes.
    DType dtype = inputs[0].dtype();
    for (const Tensor& t : inputs) {
      if (t.dtype() != inputs[0].dtype()) dtype = DType::u8;
    }
    std::int64_t count = 0;
    for (const Tensor& t : inputs) {
      gathering->counts.push_back(t.count());
      count += t.count() * element_size(t.dtype()) / element_size(dtype);
    }
    gathering->output = runtime_.empty(Shape{count * mesh.size()}, dtype);
    runtime_.set_category(gathering->output, Category::communication);
    copied(runtime_, "foreach_copy", inputs, {}, 2);
    if (aside) {
      gathering->event =
          exchange_aside(runtime_, CollectiveKind::all_gather, gathering->output, mesh);
      return gathering;
    }
    const std::uint32_t ready = shared_.record();
    runtime_.wait_event(ready, shared_.gather);
  }
  const Scoped<std::uint8_t> on(runtime_.current_stream, shared_.gather);
  gathering->event = exchange(runtime_, CollectiveKind::all_gather, gathering->output, mesh);
  return gathering;
}

void Group::wait_for_unshard() {
  if (!gathering_) return;
  const Scoped<Label> label(runtime_.label,
                            {"all_gather_copy_out", label_, runtime_.label.backward});
  const bool in_forward = stage == Stage::forward;
  const std::optional<Shared::LastGather> last =
      in_forward ? std::exchange(shared_.last_gather, std::nullopt) : std::nullopt;
  if (last) shared_.gather_streams_wait(last->copied_out);
  const bool alone = gather_mesh().size() == 1;
  if (alone) {
    copy_own();
  } else {
    copy_out(*gathering_);
  }
  for (Parameter& p : parameters) p.make_whole();
  for (Parameter& p : parameters) p.to_whole();
  const std::uint32_t copied_out = shared_.record();
  if (in_forward && !alone) {
    shared_.last_gather = Shared::LastGather{gathering_, copied_out};
  } else {
    shared_.gather_streams_wait(copied_out);
  }
  gathering_.reset();
}

void Group::copy_out(const Gathering& gathering) {
  runtime_.wait_event(gathering.event, runtime_.current_stream);
  const std::int64_t ranks = gather_mesh().size();
  std::vector<std::int64_t> bytes;
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    p.make_gathered(gathering.counts[i] * ranks);
    outputs.push_back(p.gathered);
    bytes.push_back(gathering.counts[i] * element_size(p.gather_dtype()));
  }
  const Tensor table = runtime_.scratch(split_table_bytes(bytes, ranks, runtime_.device));
  copied(runtime_, "split_with_sizes_copy", {gathering.output}, outputs);
}

/// One rank: the shard is the whole, and is copied all the same.
void Group::copy_own() {
  Tensor input;
  const Scoped<bool> no_grad(runtime_.grad_enabled, false);
  for (Parameter& p : parameters) {
    Tensor shard = p.gather_input();
    if (p.offload) shard = runtime_.empty(shard.shape(), shard.dtype());
    input = shard.dtype() == p.gather_dtype() ? shard : tensor::to(shard, p.gather_dtype());
    shard.reset();
    p.make_gathered(input.count());
    copied(runtime_, "copy", {input}, {p.gathered});
  }
}

void Group::reshard() {
  if (stage == Stage::forward) {
    if (!reshard_after_forward) return;
    if (to_smaller_mesh) {
      const Scoped<Label> label(runtime_.label, {"reshard", label_, runtime_.label.backward});
      for (Parameter& p : parameters) p.to_smaller_mesh(meshes_.smaller);
      resharded_ = shared_.record();
      return;
    }
  }
  if (parameters.empty() || parameters[0].held == Held::shard) return;
  for (Parameter& p : parameters) p.to_shard();
}

void Group::prefetch(Stage as) {
  const Scoped<Stage> scoped(stage, as);
  unshard();
}

void Group::after_forward() {
  if (runtime_.backward_depth == 0 && !parameters.empty()) {
    reshard();
    forward_indices_.push_back(shared_.forward_order.size());
    shared_.forward_order.push_back(this);
  }
  stage = Stage::idle;
}

void Group::before_backward(bool prefetch_last) {
  if (stage == Stage::before_backward) return;
  stage = Stage::before_backward;
  unshard();
  wait_for_unshard();
  if (prefetch_last) prefetch_previous();
}

/// The group that ran before this one in the forward is the next to run backward.
void Group::prefetch_previous() {
  if (forward_indices_.empty()) return;
  const std::size_t index = forward_indices_.back();
  forward_indices_.pop_back();
  if (index > 0) shared_.forward_order[index - 1]->prefetch(Stage::before_backward);
}

void Group::after_backward() {
  stage = Stage::after_backward;
  const Scoped<Label> label(runtime_.label, {"reduce_scatter", label_, true});
  for (Parameter& p : parameters) p.add_to_accumulated();
  if (!exchange_gradients) {
    if (reshard_after_backward) reshard();
    for (Parameter& p : parameters) p.widen_gradient();
    return;
  }
  std::vector<Parameter*> with_gradient;
  std::vector<Tensor> gradients;
  for (Parameter& p : parameters) {
    Tensor gradient = p.take_gradient();
    if (!gradient) continue;
    if (p.partial_sum) {
      Tensor sum = runtime_.empty(gradient.shape(), gradient.dtype());
      const std::uint32_t done =
          exchange_aside(runtime_, CollectiveKind::all_reduce, sum, meshes_.tensor);
      runtime_.wait_event(done, runtime_.current_stream);
      gradient = std::move(sum);
    }
    with_gradient.push_back(&p);
    gradients.push_back(std::move(gradient));
  }
  if (reshard_after_backward) reshard();
  let_reductions_go();
  if (with_gradient.empty()) return;
  if (reduced_)
    runtime_.wait_event(*std::exchange(reduced_, std::nullopt), runtime_.current_stream);
  if (all_reduced_) runtime_.wait_event(all_reduced_event_, runtime_.current_stream);
  all_reduced_.reset();
  reduce(std::move(with_gradient), std::move(gradients));
}

/// One reduction's input is kept at a time.
void Group::let_reductions_go() {
  while (!shared_.reducing.empty()) {
    runtime_.wait_event(shared_.reducing.front().event, runtime_.current_stream);
    shared_.reducing.pop_front();
  }
}

void Group::copy_in(const std::vector<Tensor>& gradients, const Tensor& input) const {
  const std::int64_t ranks = meshes_.shard.size();
  std::vector<std::int64_t> bytes;
  std::vector<Tensor> padded;
  const bool kernel = chunk_kernel(gradients[0].dtype(), input.dtype());
  for (const Tensor& g : gradients) {
    const std::int64_t rows = (g.size(0) + ranks - 1) / ranks;
    const std::int64_t count = rows * (g.count() / g.size(0));
    bytes.push_back(count * element_size(input.dtype()));
    // Without a kernel each tensor that does not divide is padded (_chunk_cat, _pad_chunk).
    if (!kernel && rows * ranks != g.size(0)) {
      padded.push_back(runtime_.empty(Shape{count * ranks}, g.dtype()));
    }
  }
  Tensor table;
  if (kernel) table = runtime_.scratch(chunk_table_bytes(bytes));
  copied(runtime_, "chunk_cat", gradients, {input});
}

void Group::reduce(std::vector<Parameter*> with_gradient, std::vector<Tensor> gradients) {
  const std::int64_t ranks = meshes_.shard.size();
  const DType dtype = with_gradient[0]->reduce.value_or(gradients[0].dtype());
  std::int64_t count = 0;  // of one rank
  for (const Parameter* p : with_gradient) count += p->padded_count(ranks);
  const Tensor input = runtime_.empty(Shape{count * ranks}, dtype);
  runtime_.set_category(input, Category::communication);
  copy_in(gradients, input);
  // The loop over gradients leaves its name on the last one until the function returns.
  const Tensor last = ranks > 1 ? gradients.back() : Tensor();
  while (!gradients.empty()) gradients.pop_back();
  const std::uint32_t ready = shared_.record();
  runtime_.wait_event(ready, shared_.reduce);
  const Scoped<std::uint8_t> on(runtime_.current_stream, shared_.reduce);
  Tensor output = runtime_.empty(Shape{count}, dtype);
  runtime_.set_category(output, Category::communication);
  std::uint32_t scattered = 0;
  if (ranks > 1) {
    scattered = exchange(runtime_, CollectiveKind::reduce_scatter, input, meshes_.shard);
  } else {
    copied(runtime_, "copy", {input}, {output});
    scattered = shared_.record();
  }
  const std::uint8_t end = all_reduce(output);
  const Scoped<std::uint8_t> after(runtime_.current_stream, end);
  const DType original = with_gradient[0]->original_dtype;
  if (output.dtype() != original) output = tensor::to(output, original);
  runtime_.set_category(output, Category::gradient);
  hand_out(with_gradient, output);
  reduced_ = shared_.record();
  shared_.last_events[end] = *reduced_;
  shared_.reducing.push_back({input, scattered});
}

/// Copies of the model average what their shards have reduced; gives the stream it ends on.
std::uint8_t Group::all_reduce(Tensor& output) {
  if (meshes_.replicate.size() == 1) return shared_.reduce;
  const std::uint32_t scattered = shared_.record();
  runtime_.wait_event(scattered, shared_.all_reduce);
  const Scoped<std::uint8_t> on(runtime_.current_stream, shared_.all_reduce);
  all_reduced_event_ = exchange(runtime_, CollectiveKind::all_reduce, output, meshes_.replicate);
  all_reduced_ = output;
  return shared_.all_reduce;
}

void Group::hand_out(const std::vector<Parameter*>& to, const Tensor& output) {
  for (Parameter* p : to) {
    Tensor gradient =
        runtime_.alias_of(output, p->shard_shape, tensor::contiguous_strides(p->shard_shape));
    if (p->offload) gradient = runtime_.on_host(p->shard_shape, output.dtype());
    if (!p->shard->grad) {
      p->shard->grad = std::move(gradient);
    } else {
      copied(runtime_, "add", {p->shard->grad, gradient}, {p->shard->grad});
    }
    if (runtime_.after_accumulate && p->shard->parameter >= 0) {
      runtime_.after_accumulate(*p->shard.get());
    }
  }
}

void Group::finish_backward() {
  for (const auto& [stream, event] : shared_.last_events) {
    runtime_.wait_event(event, runtime_.current_stream);
  }
  shared_.last_events.clear();
  reduced_.reset();
  all_reduced_.reset();
  if (gathering_) {  // gathered for nobody
    runtime_.wait_event(gathering_->event, runtime_.current_stream);
    gathering_.reset();
  }
  forward_indices_.clear();
}

}  // namespace shardfit::program::fsdp2
