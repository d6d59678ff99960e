// ZeRO stages 1 and 2: one flat tensor of all trainable parameters, cut into equal parts of the
// ranks (deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer).

#include <algorithm>

#include "program/strategies/deepspeed_engine.h"
#include "program/strategies/flat_layout.h"

namespace shardfit::program {
namespace {

using model::Module;
using tensor::Scoped;
using tensor::Tensor;
using tensor::TensorBody;

class ZeroStage12 : public DeepSpeedEngine {
 public:
  explicit ZeroStage12(const DeepSpeedParts& parts) : DeepSpeedEngine(parts) {
    partitions_gradients_ = job_.stage == 2;
    overlap_ = job_.overlap();
    contiguous_ = job_.contiguous_gradients || job_.offload_optimizer;
    // 0.18 keeps the partition's gradients in the model's dtype whatever is asked for.
    const bool wide = job_.fp32_accumulation && !job_.release_0_18;
    accumulation_dtype_ = wide ? DType::f32 : dtype_;
    compact_ = wide && dtype_ != DType::f32;
  }

  void wrap(const Module& root) override {
    const std::vector<Tensor> trainable = trainable_of(root);
    const Scoped<tensor::Label> label(runtime_.label, {"zero", 0, false});
    parameters_ = trainable;
    if (trainable.empty()) return;
    dtype_ = trainable.front().dtype();
    if (fused_) dummy_overflow_ = scalar(DType::i32);
    runtime_.program.instructions.push_back({Action::empty_cache, 0, 0});
    std::vector<std::int64_t> counts;
    for (const Tensor& p : parameters_) counts.push_back(p.count());
    layout_ = FlatLayout(counts, ranks(), job_.rank, job_.round_robin_gradients);
    make_flat();
    make_master();
    if (overlap_) reduction_stream_ = runtime_.stream("reduction");
    if (job_.offload_optimizer) {
      std::int64_t largest = 0;
      for (const Tensor& p : parameters_) largest = std::max(largest, p.count());
      staging_ = make(largest, dtype_, Category::communication, "offload_buffer");
    } else {
      // Zeros as the master's gradient, which only Adagrad's construction looks at.
      const Tensor zeros = make(layout_.partition, master_.dtype(), Category::gradient, "zeros");
    }
    optimizer_->construct({master_});
    // 0.18 reports its memory here, which resets the peaks (see_memory_usage, force=True).
    if (job_.release_0_18) runtime_.mark("before_optimizer", 0, false);
  }

  void after_gradient(TensorBody& parameter) override {
    set_up_buckets();
    if (!partitions_gradients_ && !overlap_) return;
    if (partitions_gradients_ || boundary()) add_to_bucket(parameter.parameter);
  }

  void backward_returned() override {
    const Scoped<tensor::Label> label(runtime_.label, {"reduce_gradients", 0, true});
    if (!partitions_gradients_) {
      if (!boundary()) return;
      if (!overlap_) {
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
          if (parameters_[i]->grad) add_to_bucket(static_cast<std::int32_t>(i));
        }
      }
    }
    finish_reduction();
  }

 private:
  /// A piece of a gradient that one rank owns.
  struct Slice {
    std::int64_t rank = 0, count = 0;
    Tensor output;  // of the own partition, where gradients are summed in fp32
  };

  // ---- construction

  void make_flat() {
    if (job_.release_0_18) {
      // 0.18 flattens on the host: one number stands in each parameter's place meanwhile.
      for (const Tensor& p : parameters_) {
        runtime_.rebase(p, runtime_.empty(Shape{1}, DType::f32));
      }
      runtime_.program.instructions.push_back({Action::empty_cache, 0, 0});
    }
    Tensor padding;
    if (layout_.flat_count > layout_.total && !job_.release_0_18) {
      padding = make(layout_.flat_count - layout_.total, dtype_, Category::temporary, "padding");
    }
    flat_ = make(layout_.flat_count, dtype_, Category::parameter, "flat_parameters");
    padding.reset();
    for (const Tensor& p : parameters_) runtime_.rebase(p, flat_);
  }

  DType master_dtype() const { return job_.low_precision_states ? dtype_ : DType::f32; }

  void make_master() {
    Tensor part = make(layout_.partition, dtype_, Category::temporary, "clone");
    if (job_.offload_optimizer) {
      master_ = runtime_.host_scalar(DType::f32);
      return;
    }
    if (master_dtype() == dtype_) {
      master_ = part;
    } else {
      master_ =
          make(layout_.partition, master_dtype(), Category::optimizer_state, "master_parameters");
    }
    runtime_.set_category(master_, Category::optimizer_state);
  }

  // ---- backward

  /// setup_buckets: whole at the first gradient, two of them where the exchange overlaps.
  void set_up_buckets() {
    if (ready_) return;
    if (contiguous_) {
      buffers_[0].reset();
      buffers_[1].reset();
      buffers_[0] =
          make(job_.reduce_bucket_size, dtype_, Category::communication, "gradient_bucket");
      index_ = 0;
      if (overlap_) {
        buffers_[1] =
            make(job_.reduce_bucket_size, dtype_, Category::communication, "gradient_bucket");
      }
    }
    ready_ = true;
  }

  void add_to_bucket(std::int32_t number) {
    const auto i = static_cast<std::size_t>(number);
    const Tensor& p = parameters_[i];
    if (elements_ + p.count() > job_.reduce_bucket_size) {
      reduce_bucket();
      if (contiguous_ && overlap_) index_ = 1 - index_;
    }
    if (contiguous_) {
      if (p.count() > job_.reduce_bucket_size) {
        if (job_.offload_optimizer && !job_.release_0_18) {
          // The safety of offloading: a copy, in the place of the gradient itself.
          const Scoped<const char*> kind(runtime_.label.kind, "clone");
          p->grad = runtime_.empty(p.shape(), dtype_);
        }
        oversized_ = true;
      } else {
        if (runtime_.watched()) runtime_.ran("copy", {p->grad}, {p->grad});
        p->grad = runtime_.alias_of(buffers_[index_], p.shape(), p->stride);
      }
    }
    elements_ += p.count();
    bucket_.push_back(i);
    held_.push_back(p->grad);
  }

  void on_reduction_stream(const std::function<void()>& body) {
    if (!overlap_) return body();
    const Scoped<std::uint8_t> stream(runtime_.current_stream, reduction_stream_);
    body();
  }

  /// reduce_ipg_grads
  void reduce_bucket() {
    const Scoped<const char*> kind(runtime_.label.kind, "reduce_gradients");
    if (contiguous_) {
      average();
    } else {
      reduce_separately();
    }
    oversized_ = false;
    on_reduction_stream([&] {
      for (std::size_t i : bucket_) settle(i);
      held_.clear();
      bucket_.clear();
      elements_ = 0;
    });
  }

  /// A gradient has been reduced: others' are dropped, the own kept in memory of its own.
  void settle(std::size_t i) {
    Tensor& gradient = parameters_[i]->grad;
    if (partitions_gradients_ && !layout_.is_own(i)) {
      if (overlap_ && !contiguous_) {
        previous_.push_back(i);
      } else {
        gradient.reset();
      }
    } else if (contiguous_ && layout_.is_own(i)) {
      copy_into_partition(i);
    }
  }

  /// The two streams wait for each other: the bucket was filled on the current one.
  void order_streams() {
    if (!overlap_) return;
    const std::uint32_t filled = runtime_.make_event();
    runtime_.record_event(filled, runtime_.current_stream);
    runtime_.wait_event(filled, reduction_stream_);
    const std::uint32_t reduced = runtime_.make_event();
    runtime_.record_event(reduced, reduction_stream_);
    runtime_.wait_event(reduced, runtime_.current_stream);
  }

  /// average_tensor
  void average() {
    if (bucket_.empty()) return;
    order_streams();
    on_reduction_stream([&] {
      if (!job_.reduce_scatter) {
        exchange(CollectiveKind::all_reduce, dtype_, elements_);
        if (compact_) add_whole_to_compact();
        return;
      }
      reduce_slices(slices_of_bucket());
    });
  }

  std::vector<Slice> slices_of_bucket() {
    std::vector<Slice> slices;
    std::int64_t previous = -1;
    for (std::size_t i : bucket_) {
      std::int64_t rank = layout_.first_rank(i);
      for (; rank < ranks() && layout_.share(i, rank) > 0; ++rank) {
        Slice slice;
        slice.rank = rank;
        slice.count = layout_.share(i, rank);
        if (compact_ && rank == job_.rank) slice.output = compact_buffer();
        if (!slice.output && rank == previous) {
          slices.back().count += slice.count;
        } else {
          slices.push_back(std::move(slice));
        }
        previous = rank;
      }
    }
    return slices;
  }

  /// allreduce_and_scatter: a bucket of slices is flattened again, all-reduced, and copied back.
  void reduce_slices(const std::vector<Slice>& slices) {
    std::vector<Slice> small;
    std::int64_t count = 0;
    for (const Slice& slice : slices) {
      small.push_back(slice);
      count += slice.count;
      if (count <= job_.reduce_bucket_size) continue;
      reduce_flattened(small, count);
      small.clear();
      count = 0;
    }
    if (!small.empty()) reduce_flattened(small, count);
  }

  void reduce_flattened(const std::vector<Slice>& slices, std::int64_t count) {
    std::vector<std::int64_t> counts;
    for (const Slice& slice : slices) counts.push_back(slice.count);
    const Tensor flat = flatten(counts, dtype_, "flattened_bucket");
    exchange(CollectiveKind::all_reduce, dtype_, count);
    for (const Slice& slice : slices) {
      if (slice.rank != job_.rank) continue;
      add_to_output(slice.output, slice.count);
      if (overlap_) use_on_reduction_stream();
    }
  }

  /// record_stream of a piece of what was reduced, which lies in the bucket.
  void use_on_reduction_stream() {
    if (!oversized_) {
      runtime_.record_stream(buffers_[index_], reduction_stream_);
    } else {
      runtime_.record_stream(parameters_[bucket_.front()]->grad, reduction_stream_);
    }
  }

  void add_to_output(const Tensor& output, std::int64_t count) {
    if (!output) return;
    const Tensor wide = make(count, DType::f32, Category::temporary, "to");
  }

  /// buffered_reduce_fallback: gradients as they are, flattened for the exchange.
  void reduce_separately() {
    if (bucket_.empty()) return;
    if (overlap_) clear_previous();
    on_reduction_stream([&] {
      std::vector<std::int64_t> counts;
      for (std::size_t i : bucket_) counts.push_back(parameters_[i].count());
      const Tensor flat = flatten(counts, dtype_, "flattened_bucket");
      exchange(CollectiveKind::all_reduce, dtype_, elements_);
      for (std::size_t i : bucket_) {
        if (compact_ && layout_.is_own(i))
          add_to_output(compact_buffer(), layout_.share(i, job_.rank));
        if (overlap_) runtime_.record_stream(parameters_[i]->grad, reduction_stream_);
      }
    });
  }

  void add_whole_to_compact() {
    for (std::size_t i : bucket_) {
      if (layout_.is_own(i)) add_to_output(compact_buffer(), layout_.share(i, job_.rank));
    }
  }

  /// The own partition's gradients in fp32, made at the first piece.
  const Tensor& compact_buffer() {
    if (!compact_partition_) {
      compact_partition_ =
          make(layout_.partition, DType::f32, Category::gradient, "gradient_partition");
    }
    return compact_partition_;
  }

  /// copy_grads_in_partition: one tensor for all parameters that overlap the partition, each whole.
  void copy_into_partition(std::size_t i) {
    if (job_.offload_optimizer) return offload_gradient(i);
    if (compact_) return;
    if (!own_gradients_) {
      std::int64_t count = 0;
      for (std::size_t own : layout_.own) count += parameters_[own].count();
      own_gradients_ = make(count, dtype_, Category::gradient, "gradient_partition");
    }
    const Tensor& p = parameters_[i];
    p->grad = runtime_.alias_of(own_gradients_, p.shape(), p->stride);
  }

  /// Gradients go to the host; with accumulation they come back to be added to. The norm is taken
  /// on the device.
  void offload_gradient(std::size_t i) {
    Tensor& gradient = parameters_[i]->grad;
    if (!boundary()) return;
    norms_.push_back(norm_of(layout_.share(i, job_.rank)));
    {
      const Tensor wide =
          make(layout_.share(i, job_.rank), DType::f32, Category::temporary, "master_gradient");
    }
    gradient.reset();
  }

  void clear_previous() {
    for (std::size_t i : previous_) parameters_[i]->grad.reset();
    previous_.clear();
  }

  /// independent_gradient_partition_epilogue
  void finish_reduction() {
    reduce_bucket();
    if (overlap_) {
      const std::uint32_t done = runtime_.make_event();
      runtime_.record_event(done, reduction_stream_);
      runtime_.host_wait(done);
      clear_previous();
    }
    if (!job_.offload_optimizer) gather_own_gradients();
    if (contiguous_) {
      buffers_[0].reset();
      buffers_[1].reset();
      own_gradients_.reset();
    }
    ready_ = false;
    for (const Tensor& p : parameters_) p->grad.reset();
  }

  void gather_own_gradients() {
    if (compact_) {
      if (boundary()) compact_buffer();
      return;
    }
    const bool first = all_gradients_.empty();
    for (std::size_t i : layout_.own) {
      Tensor gradient = parameters_[i]->grad;
      if (!gradient) {
        gradient = runtime_.empty(parameters_[i].shape(), accumulation_dtype_);
        runtime_.set_category(gradient, Category::gradient);
      }
      if (first) all_gradients_.push_back(std::move(gradient));
    }
    if (!boundary()) return;
    std::int64_t held = 0;
    averaged_ = std::move(all_gradients_);
    all_gradients_.clear();
    for (std::size_t i : layout_.own) held += layout_.share(i, job_.rank);
    if (held < layout_.partition) {
      averaged_.push_back(
          make(layout_.partition - held, accumulation_dtype_, Category::gradient, "zeros"));
    }
  }

  // ---- step

  void update() override {
    exchange(CollectiveKind::all_reduce, DType::u8, 1);  // overflow
    Tensor norm;
    if (job_.offload_optimizer) {
      const Tensor total = scalar(DType::f32);  // of all ranks; the norm goes to the host
      exchange(CollectiveKind::all_reduce, DType::f32, 1);
    } else {
      check_overflow();
      norm = partition_norm();
      global_norm_ = tensor::div_scalar(norm);
    }
    if (job_.offload_optimizer) {
      norms_.clear();
    } else {
      take_gradients();
      clip_factor(norm);
      optimizer_->step({master_});
      master_->grad.reset();
    }
    exchange(CollectiveKind::all_gather, dtype_, layout_.flat_count);
  }

  void check_overflow() {
    for (std::size_t i : layout_.own) {
      if (!job_.release_0_18) {
        check_extremes(compact_ ? compact_partition_ : averaged_.front(),
                       layout_.share(i, job_.rank));
      } else if (dtype_ == DType::f16) {
        check_elements(layout_.share(i, job_.rank));
      }
    }
  }

  Tensor partition_norm() {
    std::vector<Tensor> norms;
    for (std::size_t i : layout_.own) norms.push_back(norm_of(layout_.share(i, job_.rank)));
    if (norms.empty()) norms.push_back(scalar(DType::f64));
    const Tensor group = total_norm(std::move(norms));
    return combined_norm();
  }

  /// The partition's gradients in one tensor, in the master's dtype.
  void take_gradients() {
    const Scoped<const char*> kind(runtime_.label.kind, "flattened_gradients");
    Tensor flat;
    if (compact_) {
      flat = std::move(compact_partition_);
    } else {
      std::vector<std::int64_t> counts;
      for (std::size_t i : layout_.own) counts.push_back(layout_.share(i, job_.rank));
      if (averaged_.size() > layout_.own.size()) counts.push_back(averaged_.back().count());
      flat = flatten(counts, accumulation_dtype_, "flattened_gradients");
    }
    Tensor gradient;
    if (accumulation_dtype_ == master_dtype()) {
      gradient = flat ? flat : averaged_.front();
    } else {
      gradient = make(layout_.partition, master_dtype(), Category::gradient, "master_gradient");
    }
    flat.reset();
    averaged_.clear();
    compact_partition_.reset();
    master_->grad = std::move(gradient);
  }

  bool partitions_gradients_, overlap_, contiguous_, compact_;
  DType accumulation_dtype_;
  std::vector<Tensor> parameters_;
  FlatLayout layout_;
  Tensor flat_, master_, staging_;
  std::uint8_t reduction_stream_ = 0;

  bool ready_ = false, oversized_ = false;
  int index_ = 0;
  std::int64_t elements_ = 0;
  Tensor buffers_[2];
  std::vector<std::size_t> bucket_, previous_;
  std::vector<Tensor> held_;  // gradients of the bucket
  Tensor own_gradients_, compact_partition_;
  std::vector<Tensor> all_gradients_, averaged_, norms_;
};

}  // namespace

std::unique_ptr<Strategy> make_deepspeed_stage12(const DeepSpeedParts& parts) {
  return std::make_unique<ZeroStage12>(parts);
}

}  // namespace shardfit::program
