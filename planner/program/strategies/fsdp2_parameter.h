#pragma once
// One parameter under fully_shard: this rank's rows of it, and the whole of it while it is gathered
// (torch/distributed/fsdp/_fully_shard/_fsdp_param.py).

#include <optional>
#include <vector>

#include "program/strategies/mesh.h"

namespace shardfit::program::fsdp2 {

enum class Held : std::uint8_t { shard, smaller_mesh, whole };

class Parameter {
 public:
  /// Makes the padded shard; the original goes with its last reference.
  Parameter(const tensor::Tensor& original, std::vector<Place> places, const Mesh& mesh,
            const Fsdp2Job& job);

  /// Rows of dimension 0 that a rank of `ranks` has, padded as rank 0's.
  std::int64_t padded_rows(std::int64_t ranks) const;
  /// The same as a number of elements.
  std::int64_t padded_count(std::int64_t ranks) const { return padded_rows(ranks) * row_; }

  /// The model was built without memory and has been given some: `fresh` is the registered shard.
  /// Not padded as yet (Module.to_empty).
  void replace_shard(const tensor::Tensor& fresh);
  /// Pads such a shard, once (reset_sharded_param).
  void pad_shard();
  bool at(const model::Module& module, std::size_t index) const {
    return places_[0].module == &module && places_[0].index == index;
  }

  /// What this rank gives to the all-gather, before a cast to the compute dtype.
  const tensor::Tensor& gather_input() const;
  DType gather_dtype() const { return cast ? *cast : original_dtype; }
  /// Memory for `count` elements gathered from all ranks, at the first gather and after each
  /// reshard.
  void make_gathered(std::int64_t count);
  /// The parameter as autograd sees it: a view of what was gathered, made once.
  void make_whole();

  void to_shard();
  void to_whole();
  void to_smaller_mesh(const Mesh& mesh);

  /// Keeps the gradient in the dtype of the reduction until the ranks exchange
  /// (to_accumulated_grad_if_needed, accumulate_unsharded_grad_if_needed).
  void widen_gradient();
  void add_to_accumulated();
  /// The gradient of the whole parameter that waits for the exchange; it is given away.
  tensor::Tensor take_gradient();

  tensor::Shape shape;  // of the whole parameter
  tensor::Shape shard_shape;
  DType original_dtype;
  bool trainable;
  bool offload;
  bool partial_sum = false;     // its gradient is one of this tensor rank's tokens
  std::optional<DType> cast;    // compute dtype, where it is not the original one
  std::optional<DType> reduce;  // dtype of the reduction, where it is not that of gradients
  Held held = Held::shard;
  tensor::Tensor shard;       // the registered parameter: without padding
  tensor::Tensor shard_data;  // one dimension, padded
  tensor::Tensor gathered;    // one dimension, padded
  tensor::Tensor whole;
  tensor::Tensor smaller;      // one dimension: after forward, in a smaller mesh
  tensor::Tensor accumulated;  // gradient of passes that did not exchange

 private:
  void place(const tensor::Tensor& tensor) const;

  std::vector<Place> places_;
  std::int64_t padded_ = 0;  // elements of a padded shard
  std::int64_t row_ = 1;     // elements of a row
};

}  // namespace shardfit::program::fsdp2
