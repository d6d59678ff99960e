#pragma once
// The flat parameter of one FullyShardedDataParallel unit: this rank's part of it, and the whole of
// it while it is gathered (torch/distributed/fsdp/_flat_param.py, FlatParamHandle).

#include <cstdint>
#include <optional>
#include <vector>

#include "program/strategies/mesh.h"

namespace shardfit::program::fsdp1 {

enum class Stage : std::uint8_t { idle, forward, before_backward, after_backward };

class Handle {
 public:
  /// Joins the parameters in one tensor and keeps this rank's part of it; what the parameters held
  /// goes.
  Handle(const Fsdp1Job& job, const Mesh& mesh, std::vector<model::Parameter> listed,
         model::Machine& machine, const ModelPlaces& places);

  /// Makes and lets go what the first forward finds freed (init_flat_param_attributes).
  void init_attributes();

  bool sharded() const { return mesh_.size() > 1 && job_.sharding != Fsdp1Job::Sharding::none; }
  bool needs_unshard() const;
  /// Brings the shard into the compute dtype or onto the device, on the current stream; whether
  /// there was anything to do.
  bool pre_unshard();
  void alloc_whole();
  void use_whole();
  void post_unshard();
  void use_shard();
  void free_whole();
  void post_reshard();

  /// Gradients accumulated before are set aside for the backward to come.
  void set_gradient_aside();
  void gradient_for_optimizer();
  /// Original parameters' gradients are parts of the flat one.
  void use_sharded_gradients();
  void use_whole_gradients();
  /// Drops the flat gradient where none of the original parameters has one any more.
  void drop_gradient_if_unused();

  bool trainable() const { return flat->leaf_requires_grad; }
  /// The flat parameter is this rank's shard, and so are the modules'.
  bool holds_shard() const { return flat->storage == shard_->storage && !skipped_shard_views_; }
  std::int64_t shard_count() const { return shard_count_; }

  tensor::Tensor flat;   // the parameter that autograd sees
  tensor::Tensor whole;  // padded to a multiple of the ranks
  tensor::Tensor saved;  // the shard's gradient until the backward has ended
  std::vector<tensor::Tensor> originals;
  Stage stage = Stage::idle;
  DType original_dtype, compute_dtype, reduce_dtype;
  bool prefetched = false, before_forward_due = false, before_backward_due = false;
  bool ran_before_backward = false;
  bool has_hook = false;
  tensor::NodeRef accumulator;  // that the hook is on, until the backward has ended
  std::optional<std::size_t> forward_index, backward_index;  // in the orders of the units

 private:
  struct Part {
    tensor::Shape shape;
    std::int64_t start = 0, count = 0;  // in the whole
    std::vector<Place> places;
  };

  void flatten(const std::vector<model::Parameter>& listed, const ModelPlaces& places);
  std::int64_t pad(std::int64_t count, std::vector<tensor::Tensor>& padding);
  void keep_shard();
  void place_views();
  void place_originals(const tensor::Tensor& shard);
  bool mixed() const { return compute_dtype != original_dtype; }
  bool keeps_whole_after_forward() const {
    return job_.sharding == Fsdp1Job::Sharding::gradients_and_states;
  }
  /// The elements of a part that are in this rank's shard: first and count.
  std::pair<std::int64_t, std::int64_t> in_shard(const Part& part) const;

  const Fsdp1Job& job_;
  const Mesh& mesh_;
  tensor::Runtime& runtime_;
  std::vector<Part> parts_;
  std::vector<std::int64_t> pieces_;  // parts and padding in their order
  std::vector<bool> is_padding_;
  std::int64_t count_ = 0;  // of the whole without the padding at its end
  std::int64_t shard_count_ = 0;
  tensor::Tensor shard_;      // on the device, or on the host
  tensor::Tensor low_shard_;  // in the compute dtype
  std::vector<tensor::Tensor> views_;
  bool skipped_shard_views_ = false;
};

}  // namespace shardfit::program::fsdp1
