#include "program/strategies/zero3_parameters.h"

#include <algorithm>
#include <set>

#include "tensor/ops.h"

namespace shardfit::program {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;
using Status = ShardedParameter::Status;

void ShardedParameter::activate(const void* module) {
  if (std::find(active.begin(), active.end(), module) == active.end()) active.push_back(module);
}

void ShardedParameter::deactivate(const void* module) {
  const auto it = std::find(active.begin(), active.end(), module);
  if (it != active.end()) active.erase(it);
}

ShardedParameters::ShardedParameters(const DeepSpeedJob& job, Runtime& runtime)
    : job_(job), runtime_(runtime) {}

ShardedParameter& ShardedParameters::add(const Tensor& whole) {
  parameters_.emplace_back();
  ShardedParameter& p = parameters_.back();
  p.whole = whole;
  p.id = next_id_++;
  p.count = whole.count();
  p.part = (p.count + job_.ranks - 1) / job_.ranks;
  whole->replaceable = true;
  by_body_[whole.get()] = &p;
  return p;
}

ShardedParameter* ShardedParameters::find(const Tensor& whole) {
  const auto it = by_body_.find(whole.get());
  return it == by_body_.end() ? nullptr : it->second;
}

void ShardedParameters::keep_only(const std::vector<model::Parameter>& kept) {
  std::set<const tensor::TensorBody*> bodies;
  for (const model::Parameter& p : kept) bodies.insert(p.tensor.get());
  std::deque<ShardedParameter> left;
  for (ShardedParameter& p : parameters_) {
    if (bodies.count(p.whole.get())) left.push_back(std::move(p));
  }
  parameters_ = std::move(left);
  by_body_.clear();
  for (ShardedParameter& p : parameters_) by_body_[p.whole.get()] = &p;
}

Tensor ShardedParameters::memory(std::int64_t count, DType dtype, Category category) {
  const Scoped<const char*> kind(runtime_.label.kind, "all_gather");
  Tensor t = runtime_.empty(Shape{count}, dtype);
  runtime_.set_category(t, category);
  return t;
}

void ShardedParameters::partition(ShardedParameter& p) {
  if (p.status != Status::available) return;
  const DType dtype = p.whole.dtype();
  if (!p.shard) {
    if (shards_on_host()) {
      p.shard = runtime_.host_scalar(dtype);
    } else {
      p.shard = memory(p.part, dtype, Category::parameter);
    }
  }
  runtime_.record_stream(p.whole, runtime_.current_stream);
  runtime_.rebase(p.whole, runtime_.empty(Shape{0}, dtype));
  p.status = Status::not_available;
}

std::uint32_t ShardedParameters::all_gather(DType dtype, std::int64_t count) {
  Collective collective;
  collective.kind = CollectiveKind::all_gather;
  collective.dtype = dtype;
  collective.bytes = count * element_size(dtype);
  return runtime_.exchange(collective, runtime_.stream("nccl"));
}

std::shared_ptr<Gather> ShardedParameters::start(std::vector<ShardedParameter*> wanted) {
  auto gather = std::make_shared<Gather>();
  for (ShardedParameter* p : wanted) p->status = Status::in_flight;
  gather->parameters = std::move(wanted);
  const auto& list = gather->parameters;
  if (job_.ranks == 1) {
    gather->local = true;
    for (ShardedParameter* p : list) {
      runtime_.rebase(p->whole, shards_on_host()
                                    ? memory(p->count, p->whole.dtype(), Category::parameter)
                                    : p->shard);
    }
    return gather;
  }
  std::int64_t part = 0;
  for (const ShardedParameter* p : list) part += p->part;
  const DType dtype = list.front()->whole.dtype();
  const bool single = list.size() == 1;
  Tensor flat =
      memory(part * job_.ranks, dtype, single ? Category::parameter : Category::communication);
  if (shards_on_host()) {
    for (const ShardedParameter* p : list) {
      gather->inputs.push_back(memory(p->part, dtype, Category::communication));
    }
    if (!single) gather->inputs.clear();  // copied into the flat tensor first
  }
  gather->done = all_gather(dtype, part * job_.ranks);
  if (single) {
    runtime_.rebase(list.front()->whole, flat);
  } else {
    gather->flat = std::move(flat);
  }
  return gather;
}

void ShardedParameters::wait(Gather& gather) {
  if (gather.complete) return;
  if (!gather.local) runtime_.wait_event(gather.done, runtime_.current_stream);
  gather.inputs.clear();
  for (ShardedParameter* p : gather.parameters) {
    if (gather.flat) {
      // torch.cat of the parts of all ranks.
      const Tensor whole = memory(p->count, p->whole.dtype(), Category::parameter);
      if (runtime_.watched()) runtime_.ran("cat", {gather.flat}, {whole});
      runtime_.rebase(p->whole, whole);
    }
    p->status = Status::available;
  }
  gather.complete = true;
}

void ShardedParameters::gather_now(const std::vector<ShardedParameter*>& wanted) {
  std::vector<ShardedParameter*> list;
  for (ShardedParameter* p : wanted) {
    if (p->status == Status::not_available) list.push_back(p);
  }
  if (list.empty()) return;
  if (list.size() > 1 && job_.ranks == 1) {
    const auto gather = start(list);
    return wait(*gather);
  }
  std::vector<Tensor> wholes, inputs;
  if (shards_on_host() && list.size() > 1) {
    for (const ShardedParameter* p : list) {
      inputs.push_back(memory(p->part, p->whole.dtype(), Category::communication));
    }
  }
  for (const ShardedParameter* p : list) {
    wholes.push_back(memory(p->part * job_.ranks, p->whole.dtype(), Category::parameter));
  }
  if (shards_on_host() && list.size() == 1) {
    inputs.push_back(
        memory(list.front()->part, list.front()->whole.dtype(), Category::communication));
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (job_.ranks > 1) {
      const std::uint32_t done = all_gather(list[i]->whole.dtype(), list[i]->part * job_.ranks);
      runtime_.wait_event(done, runtime_.current_stream);
    }
    if (job_.release_0_18 && list.size() == 1) {
      // 0.18 copies a single one out of the flat tensor (_allgather_params).
      wholes[i] = Tensor(memory(list[i]->count, list[i]->whole.dtype(), Category::parameter));
    }
    runtime_.rebase(list[i]->whole, wholes[i]);
    list[i]->status = Status::available;
  }
}

Tensor ShardedParameters::defragment(const std::vector<ShardedParameter*>& parts) {
  std::int64_t count = 0;
  for (ShardedParameter* p : parts) {
    count += p->part;
    p->shard.reset();
  }
  runtime_.program.instructions.push_back({Action::empty_cache, 0, 0});
  if (parts.empty()) return {};
  const DType dtype = parts.front()->whole.dtype();
  if (shards_on_host()) {
    for (ShardedParameter* p : parts) p->shard = runtime_.host_scalar(dtype);
    return runtime_.host_scalar(dtype);
  }
  Tensor flat = memory(count, dtype, Category::parameter);
  for (ShardedParameter* p : parts) p->shard = runtime_.alias_of(flat, Shape{p->part}, Shape{1});
  return flat;
}

std::shared_ptr<ShardedParameters> deepspeed_zero_init(const DeepSpeedJob& job,
                                                       model::Machine& machine) {
  if (job.stage != 3 || !job.zero_init) return nullptr;
  auto shards = std::make_shared<ShardedParameters>(job, machine.runtime);
  machine.built = [shards](model::Module& module) {
    const std::size_t count = module.type->spec->parameters.size();
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor& t = module.tensors[i];
      if (t) shards->partition(shards->add(t));
    }
  };
  return shards;
}

}  // namespace shardfit::program
