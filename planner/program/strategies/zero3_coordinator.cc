#include "program/strategies/zero3_coordinator.h"

#include <algorithm>

namespace shardfit::program {

using tensor::Scoped;
using Status = ShardedParameter::Status;

namespace {

constexpr std::int64_t never = -10000000000;
constexpr std::size_t ongoing_fetches = 2;

}  // namespace

ParameterCoordinator::ParameterCoordinator(const DeepSpeedJob& job, ShardedParameters& shards,
                                           tensor::Runtime& runtime)
    : job_(job), shards_(shards), runtime_(runtime) {
  if (job.overlap()) stream_ = runtime.stream("all_gather");
}

std::int64_t ParameterCoordinator::last_fetched(ShardedParameter* p) const {
  const auto it = fetched_for_.find(p);
  return it == fetched_for_.end() ? never : it->second;
}

void ParameterCoordinator::finish_in_flight() {
  for (ShardedParameter& p : shards_.all()) {
    if (!p.gather) continue;
    shards_.wait(*p.gather);
    p.gather.reset();
    release(p);
  }
}

/// assert_ints_same_as_other_ranks: how many, and which, sent by rank 0.
void ParameterCoordinator::compare_with_ranks(std::size_t numbers) {
  const tensor::Tensor length = runtime_.empty({}, DType::i64);
  const auto count = static_cast<std::int64_t>(numbers);
  const tensor::Tensor values = runtime_.empty(tensor::Shape{count}, DType::i64);
}

void ParameterCoordinator::reset_step() {
  finish_in_flight();
  if (mode_ != Mode::complete) compare_with_ranks(modules_.size());
  if (mode_ == Mode::record) {
    order_.clear();
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      std::vector<ShardedParameter*> own = modules_[i]->parameters;
      std::sort(own.begin(), own.end(), [](auto* a, auto* b) { return a->id < b->id; });
      for (ShardedParameter* p : own) order_.push_back({p, static_cast<std::int64_t>(i)});
    }
    for (int k = 0; k < 2; ++k) compare_with_ranks(order_.size());
    mode_ = Mode::complete;
  } else if (mode_ == Mode::invalid) {
    mode_ = Mode::record;
  }
  queue_.assign(order_.begin(), order_.end());
  fetched_for_.clear();
  step_ = 0;
  available_ = 0;
}

void ParameterCoordinator::invalidate() {
  mode_ = Mode::invalid;
  modules_.clear();
  order_.clear();
  queue_.clear();
  fetched_for_.clear();
  finish_in_flight();
}

void ParameterCoordinator::check_trace(const ZeroModule& module) {
  if (mode_ != Mode::complete) return;
  const auto at = static_cast<std::size_t>(step_);
  if (at >= modules_.size() || modules_[at] != &module) invalidate();
}

void ParameterCoordinator::enter(ZeroModule& module, bool forward) {
  check_trace(module);
  if (mode_ == Mode::record) modules_.push_back(&module);
  if (!forward) {
    backward_.erase(std::remove(backward_.begin(), backward_.end(), &module), backward_.end());
    backward_.push_back(&module);
  }
  fetch(module, forward);
}

/// _fetch_sub_module_impl: the module's own parameters first, then those that come next; then wait
/// for its own.
void ParameterCoordinator::fetch(ZeroModule& module, bool forward) {
  gather(module.parameters);
  const bool recomputing = forward && runtime_.backward_depth > 0;
  for (ShardedParameter* p : module.parameters) {
    p->activate(&module);
    if (recomputing && !backward_.empty() && !p->whole->leaf_requires_grad) {
      p->activate(backward_.back());
      auto& list = backward_.back()->recomputed;
      if (std::find(list.begin(), list.end(), p) == list.end()) list.push_back(p);
    }
    wait_for(*p);
  }
  if (stream_ != runtime_.current_stream && !module.parameters.empty()) {
    const std::uint32_t gathered = runtime_.make_event();
    runtime_.record_event(gathered, stream_);
    runtime_.wait_event(gathered, runtime_.current_stream);
  }
  if (mode_ == Mode::complete) {
    advance_queue(module);
    if (job_.prefetch_bucket_size > 0) prefetch();
  }
  ++step_;
}

void ParameterCoordinator::wait_for(ShardedParameter& p) {
  if (!p.gather) return;
  const Scoped<std::uint8_t> on(runtime_.current_stream, stream_);
  if (fetches_.size() > ongoing_fetches) {
    runtime_.host_wait(fetches_.front());
    fetches_.pop_front();
  }
  const std::shared_ptr<Gather> gather = std::move(p.gather);
  shards_.wait(*gather);
  const std::uint32_t fetched = runtime_.make_event();
  runtime_.record_event(fetched, stream_);
  fetches_.push_back(fetched);
}

void ParameterCoordinator::gather(const std::vector<ShardedParameter*>& wanted) {
  std::vector<ShardedParameter*> list;
  for (ShardedParameter* p : wanted) {
    if (p->status == Status::not_available) list.push_back(p);
  }
  if (list.empty()) return;
  std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->id < b->id; });
  for (const ShardedParameter* p : list) available_ += p->count;
  const Scoped<std::uint8_t> on(runtime_.current_stream, stream_);
  const auto made = shards_.start(list);
  for (ShardedParameter* p : list) p->gather = made;
}

/// What has been fetched leaves the queue.
void ParameterCoordinator::advance_queue(const ZeroModule& module) {
  std::set<ShardedParameter*> expected, discarded;
  for (ShardedParameter* p : module.parameters) {
    if (last_fetched(p) < step_) expected.insert(p);
  }
  while (!queue_.empty() && discarded.size() < expected.size()) {
    const InTrace next = queue_.front();
    queue_.pop_front();
    fetched_for_[next.parameter] = next.last_used;
    discarded.insert(next.parameter);
  }
}

void ParameterCoordinator::prefetch() {
  const std::int64_t most =
      std::min(job_.max_live_parameters - available_, job_.prefetch_bucket_size);
  std::vector<ShardedParameter*> wanted;
  std::int64_t count = 0;
  while (!queue_.empty() && count < most) {
    const InTrace next = queue_.front();
    queue_.pop_front();
    ShardedParameter* p = next.parameter;
    fetched_for_[p] = std::max(last_fetched(p), next.last_used);
    const bool known = std::find(wanted.begin(), wanted.end(), p) != wanted.end();
    if (p->status != Status::not_available || known) continue;
    wanted.push_back(p);
    count += p->count;
  }
  if (count > 0) gather(wanted);
}

/// Parameters that the trace does not need again soon. The answer is kept: the original asks once
/// for each step of the trace.
const std::set<ShardedParameter*>& ParameterCoordinator::to_release(ZeroModule& module) {
  const auto [it, fresh] = releases_.try_emplace({&module, step_});
  std::set<ShardedParameter*>& out = it->second;
  if (!fresh) return out;
  for (ShardedParameter* p : module.parameters) {
    if (!p->persistent && last_fetched(p) <= step_) out.insert(p);
  }
  std::int64_t traversed = 0;
  for (auto at = static_cast<std::size_t>(step_); at < modules_.size(); ++at) {
    if (traversed >= job_.max_reuse_distance) break;
    for (ShardedParameter* p : modules_[at]->parameters) {
      out.erase(p);
      traversed += p->count;
    }
  }
  return out;
}

void ParameterCoordinator::leave(ZeroModule& module, bool forward) {
  std::set<ShardedParameter*> releasing;
  if (mode_ == Mode::complete) {
    releasing = to_release(module);
  } else {
    releasing.insert(module.parameters.begin(), module.parameters.end());
  }
  std::vector<ShardedParameter*> mine = module.parameters;
  if (!forward) {
    for (ShardedParameter* p : module.recomputed) {
      if (!p->persistent) releasing.insert(p);
      if (std::find(mine.begin(), mine.end(), p) == mine.end()) mine.push_back(p);
    }
    module.recomputed.clear();
    backward_.erase(std::remove(backward_.begin(), backward_.end(), &module), backward_.end());
  }
  for (ShardedParameter* p : mine) {
    p->deactivate(&module);
    if (releasing.count(p)) release(*p);
  }
}

void ParameterCoordinator::release(ShardedParameter& p) {
  if (p.status != Status::available || !p.active.empty()) return;
  shards_.partition(p);
  available_ -= p.count;
}

void ParameterCoordinator::release_leftovers() {
  while (!backward_.empty()) {
    ZeroModule& module = *backward_.back();
    backward_.pop_back();
    std::vector<ShardedParameter*> mine = module.parameters;
    mine.insert(mine.end(), module.recomputed.begin(), module.recomputed.end());
    module.recomputed.clear();
    for (ShardedParameter* p : mine) {
      p->deactivate(&module);
      if (!p->persistent) release(*p);
    }
  }
}

void ParameterCoordinator::release_all() {
  for (ShardedParameter& p : shards_.all()) {
    if (p.gather) {
      shards_.wait(*p.gather);
      p.gather.reset();
    }
    p.active.clear();
    release(p);
  }
}

}  // namespace shardfit::program
