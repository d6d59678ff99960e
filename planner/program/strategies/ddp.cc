// DistributedDataParallel: every rank holds the whole model; gradients are averaged in flat buckets
// (torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp).

#include <algorithm>
#include <deque>
#include <numeric>
#include <span>
#include <unordered_map>

#include "program/strategy.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;
using tensor::TensorBody;

constexpr std::int64_t first_bucket = 1 << 20;

class Ddp : public Strategy {
 public:
  Ddp(const DdpJob& job, model::Machine& machine)
      : job_(job), machine_(machine), runtime_(machine.runtime) {}

  void wrap(const model::Module& root) override {
    for (const model::Parameter& p : machine_.parameters(root)) {
      if (p.tensor->leaf_requires_grad) parameters_.push_back(p.tensor);
    }
    if (job_.init_sync) broadcast_state(root);
    const std::vector<Tensor>& trainable = parameters_;
    // Without unused parameters to look for, the first iteration has one bucket a dtype: it is
    // rebuilt.
    const bool limits = job_.find_unused && !job_.static_graph;
    make_buckets(trainable, limits);
    std::reverse(buckets_.begin(), buckets_.end());
    find_homes();
    if (job_.static_graph) {
      used_map_ = runtime_.empty(Shape{static_cast<std::int64_t>(trainable.size())}, DType::i32);
      runtime_.set_category(used_map_, Category::communication);
    }
  }

  void before_forward(bool synchronize) override {
    const Scoped<tensor::Label> label(runtime_.label, {"ddp", 0, false});
    if (may_rebuild() && !arrived_.empty()) rebuild();
    collecting_ = synchronize;
    for (Bucket& bucket : buckets_) bucket.pending = bucket.members.size();
    next_ = 0;
    if (synchronize_buffers_) broadcast_buffers();
  }

  void after_forward(bool synchronize, model::Value& result) override {
    synchronize_buffers_ = synchronize;
    // A static graph's first outputs pass through a copy (_DDPSink).
    if (job_.static_graph && passes_++ == 0) copy_tensors(result);
  }

  void after_gradient(TensorBody& parameter) override {
    if (!collecting_) return;
    // A static graph is only known after the first iteration, which exchanges all at its end
    // (Reducer::delay_all_reduce).
    const bool first = job_.static_graph && passes_ <= 1;
    if (may_rebuild() && !first) arrived_.push_back(&parameter);
    if (first) {
      delayed_.push_back(&parameter);
    } else {
      ready(parameter);
    }
  }

  bool waits_for_gradients() const override { return collecting_; }

  void after_backward() override {
    const Scoped<tensor::Label> label(runtime_.label, {"ddp", 0, true});
    for (TensorBody* parameter : delayed_) ready(*parameter);
    delayed_.clear();
    for (const std::uint32_t done : works_) runtime_.wait_event(done, runtime_.current_stream);
    if (!works_.empty() && !job_.bucket_view)
      copy_bytes(buckets_, 2);  // averages back to the gradients
    works_.clear();
  }

 private:
  struct Bucket {
    Tensor buffer;
    std::vector<const TensorBody*> members;
    std::size_t pending = 0;  // gradients this pass has not brought yet
  };

  /// The gradient goes into its bucket; full buckets are exchanged in order (mark_bucket_ready).
  void ready(TensorBody& parameter) {
    Bucket& bucket = buckets_[home_.at(&parameter)];
    if (job_.bucket_view) move_into_bucket(parameter, bucket);
    if (bucket.pending > 0) --bucket.pending;
    while (next_ < buckets_.size() && buckets_[next_].pending == 0) exchange(buckets_[next_++]);
  }

  void exchange(const Bucket& bucket) {
    if (!job_.bucket_view) copy_bytes({&bucket, 1}, 2);  // scaled by 1 / ranks on the way
    Collective all_reduce;
    all_reduce.kind = CollectiveKind::all_reduce;
    all_reduce.dtype = bucket.buffer.dtype();
    all_reduce.bytes = bucket.buffer.count() * element_size(bucket.buffer.dtype());
    all_reduce.group = group();
    works_.push_back(runtime_.exchange(all_reduce, runtime_.stream("nccl")));
  }

  std::uint32_t group() {
    std::vector<std::int32_t> all(static_cast<std::size_t>(job_.ranks));
    std::iota(all.begin(), all.end(), 0);
    return runtime_.group(all);
  }

  /// Gradients are copied to or from their buckets, a kernel each.
  void copy_bytes(std::span<const Bucket> buckets, double times) const {
    for (const Bucket& bucket : buckets) {
      const DType dtype = bucket.buffer.dtype();
      const auto bytes = static_cast<double>(bucket.buffer.count() * element_size(dtype));
      runtime_.launched("copy", dtype, times * bytes,
                        static_cast<std::int64_t>(bucket.members.size()));
    }
  }

  /// A small first bucket, unless the size of buckets was given.
  std::int64_t first_limit() const {
    return job_.bucket_bytes_given ? job_.bucket_bytes : first_bucket;
  }
  static void copy_tensors(model::Value& value) {
    if (value.kind == model::ValueKind::tensor) value.tensor = tensor::clone(value.tensor, true);
    if (value.kind != model::ValueKind::list) return;
    model::ValueList copies = *value.list;
    for (model::Value& item : copies) copy_tensors(item);
    value = model::Value::of_list(std::move(copies));
  }
  /// The gradient is copied into its place in the bucket, which it is from then on.
  void move_into_bucket(TensorBody& parameter, const Bucket& bucket) {
    parameter.grad = runtime_.alias_of(bucket.buffer, parameter.shape, parameter.stride);
  }

  bool may_rebuild() const { return (job_.static_graph || !job_.find_unused) && !rebuilt_; }

  /// compute_bucket_assignment_by_size: a bucket is closed as soon as it has reached its limit.
  void make_buckets(const std::vector<Tensor>& order, bool limited) {
    std::vector<Bucket> made;
    struct Open {
      std::vector<const TensorBody*> members;
      std::int64_t bytes = 0, count = 0;
      int closed = 0;
      DType dtype = DType::f32;
    };
    std::vector<Open> open;
    const auto close = [&](Open& o) {
      Bucket bucket;
      bucket.members = std::move(o.members);
      counts_.push_back(o.count);
      dtypes_.push_back(o.dtype);
      made.push_back(std::move(bucket));
      o.members.clear();
      o.bytes = o.count = 0;
      ++o.closed;
    };
    counts_.clear();
    dtypes_.clear();
    for (const Tensor& p : order) {
      std::size_t i = 0;
      while (i < open.size() && open[i].dtype != p.dtype()) ++i;
      if (i == open.size()) {
        open.emplace_back();
        open[i].dtype = p.dtype();
      }
      Open& o = open[i];
      o.members.push_back(p.get());
      o.count += p.count();
      o.bytes += p.count() * element_size(p.dtype());
      const std::int64_t limit = o.closed == 0 ? first_limit() : job_.bucket_bytes;
      if (limited && o.bytes >= limit) close(o);
    }
    for (Open& o : open) {
      if (!o.members.empty()) close(o);
    }
    for (std::size_t i = 0; i < made.size(); ++i) {
      made[i].buffer = runtime_.empty(Shape{counts_[i]}, dtypes_[i]);
      runtime_.set_category(made[i].buffer, Category::communication);
    }
    buckets_ = std::move(made);
    home_.clear();
  }
  /// Which bucket each parameter is in, once their order is settled.
  void find_homes() {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      for (const TensorBody* member : buckets_[i].members) home_[member] = i;
    }
  }

  /// After the first synchronized backward: buckets in the order in which gradients arrived. Rank
  /// 0's order is sent as two small tensors first.
  void rebuild() {
    std::vector<Tensor> order;
    for (const TensorBody* body : arrived_) {
      for (const Tensor& p : parameters_) {
        if (p.get() == body) order.push_back(p);
      }
    }
    const auto indices = static_cast<std::int64_t>(order.size());
    {
      const Tensor members = runtime_.empty(Shape{indices + 1}, DType::i32);
      const Tensor sizes = runtime_.empty(Shape{bucket_count(order)}, DType::i32);
    }
    buckets_.clear();
    make_buckets(order, true);
    find_homes();
    for (Bucket& bucket : buckets_) bucket.pending = bucket.members.size();
    rebuilt_ = true;
    arrived_.clear();
  }

  std::int64_t bucket_count(const std::vector<Tensor>& order) const {
    std::int64_t count = 0;
    std::int64_t bytes = 0;
    for (const Tensor& p : order) {
      bytes += p.count() * element_size(p.dtype());
      if (bytes < (count == 0 ? first_limit() : job_.bucket_bytes)) continue;
      ++count;
      bytes = 0;
    }
    return count + (bytes > 0 ? 1 : 0);
  }

  std::vector<Tensor> buffers() const {
    if (!job_.buffers) return {};
    std::vector<Tensor> found;
    for (const model::Module& module : machine_.modules) {
      const std::size_t parameters = module.type->spec->parameters.size();
      for (std::size_t i = parameters; i < module.tensors.size(); ++i) {
        if (module.tensors[i]) found.push_back(module.tensors[i]);
      }
    }
    return found;
  }

  /// Sends `bytes` from rank 0; gives the event of its end.
  std::uint32_t broadcast(std::int64_t bytes) {
    Collective broadcast;
    broadcast.kind = CollectiveKind::broadcast;
    broadcast.dtype = DType::u8;
    broadcast.bytes = bytes;
    broadcast.group = group();
    return runtime_.exchange(broadcast, runtime_.stream("nccl"));
  }

  /// Buffers are sent flattened into one tensor a dtype (_sync_buffers).
  void broadcast_buffers() {
    std::int64_t bytes = 0;
    for (const Tensor& buffer : buffers()) bytes += bytes_of(buffer);
    if (bytes == 0) return;
    const Tensor flat = runtime_.scratch(bytes);
    runtime_.wait_event(broadcast(bytes), runtime_.current_stream);
  }

  /// Parameters and buffers of one dtype that are sent as one.
  struct Coalesced {
    DType dtype;
    std::int64_t bytes = 0;
    int tensors = 0;
  };
  /// In the order of their first tensors; one is full once it has reached 250 MiB
  /// (compute_bucket_assignment_by_size with _sync_module_states' broadcast_bucket_size).
  std::vector<Coalesced> coalesced(const model::Module& root) {
    constexpr std::int64_t full = 250 << 20;
    std::vector<Tensor> all;
    for (const model::Parameter& p : machine_.parameters(root)) all.push_back(p.tensor);
    for (Tensor& buffer : buffers()) all.push_back(std::move(buffer));
    std::vector<Coalesced> found;
    for (const Tensor& tensor : all) {
      auto open = std::find_if(found.begin(), found.end(), [&](const Coalesced& c) {
        return c.dtype == tensor.dtype() && c.bytes < full;
      });
      if (open == found.end()) open = found.insert(found.end(), {tensor.dtype()});
      open->bytes += bytes_of(tensor);
      ++open->tensors;
    }
    return found;
  }

  /// torch/csrc/distributed/c10d/comm.cpp, broadcast_coalesced: each bucket is flattened, a single
  /// tensor being flat already; at most two are under way.
  void broadcast_state(const model::Module& root) {
    const Scoped<tensor::Label> label(runtime_.label, {"ddp", 0, false});
    std::deque<std::pair<Tensor, std::uint32_t>> under_way;
    const auto finish = [&] {
      runtime_.wait_event(under_way.front().second, runtime_.current_stream);
      under_way.pop_front();
    };
    for (const Coalesced& bucket : coalesced(root)) {
      if (under_way.size() >= 2) finish();
      const Tensor flat = bucket.tensors > 1 ? runtime_.scratch(bucket.bytes) : Tensor();
      under_way.emplace_back(flat, broadcast(bucket.bytes));
    }
    while (!under_way.empty()) finish();
  }
  static std::int64_t bytes_of(const Tensor& tensor) {
    return tensor.count() * element_size(tensor.dtype());
  }

  DdpJob job_;
  model::Machine& machine_;
  Runtime& runtime_;
  std::vector<Tensor> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<std::int64_t> counts_;
  std::vector<DType> dtypes_;
  std::vector<const TensorBody*> arrived_;
  std::vector<TensorBody*> delayed_;
  std::unordered_map<const TensorBody*, std::size_t> home_;
  std::vector<std::uint32_t> works_;  // ends of the exchanges of this pass
  std::size_t next_ = 0;              // first bucket that is not on its way
  Tensor used_map_;
  std::int64_t passes_ = 0;
  bool rebuilt_ = false;
  bool collecting_ = true;
  bool synchronize_buffers_ = true;
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(const DdpJob& job, model::Machine& machine) {
  return std::make_unique<Ddp>(job, machine);
}

}  // namespace shardfit::program
