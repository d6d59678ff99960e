#pragma once
// The parameters of one fully_shard call: gathered together before the module runs, their gradients
// reduced together after its backward (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
// _fsdp_collectives.py).

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "program/strategies/fsdp2_parameter.h"

namespace shardfit::program::fsdp2 {

class Group;

enum class Stage : std::uint8_t { idle, forward, before_backward, after_backward };

/// A gather on its way: its output, and when it is there.
struct Gathering {
  tensor::Tensor output;
  std::uint32_t event = 0;
  std::vector<std::int64_t> counts;  // elements of each parameter's input
};

/// What all groups of a model share (FSDPCommContext).
struct Shared {
  explicit Shared(model::Machine& in) : machine(in), runtime(in.runtime) {}

  model::Machine& machine;
  tensor::Runtime& runtime;
  std::uint8_t copy_in = 0, gather = 0, reduce = 0, all_reduce = 0;  // streams
  /// The last gather's output in forward: the next group lets it go, so that its copy into a buffer
  /// of its own may overlap.
  struct LastGather {
    std::shared_ptr<Gathering> gathering;
    std::uint32_t copied_out = 0;
  };
  std::optional<LastGather> last_gather;
  struct Reducing {
    tensor::Tensor input;
    std::uint32_t event = 0;
  };
  std::deque<Reducing> reducing;
  std::map<std::uint8_t, std::uint32_t> last_events;  // of each stream that gradients end on
  std::vector<Group*> forward_order;

  void gather_streams_wait(std::uint32_t event);
  std::uint32_t record();  // a new event on the current stream
};

/// How the ranks stand to each other: they shard over `shard`, copies are kept over `replicate`,
/// and after forward the whole may be kept in `smaller`.
struct Meshes {
  Mesh shard, replicate, smaller, tensor;
};

class Group {
 public:
  Group(Shared& shared, const Meshes& meshes, std::uint32_t label)
      : shared_(shared), runtime_(shared.runtime), meshes_(meshes), label_(label) {}

  std::vector<Parameter> parameters;
  Stage stage = Stage::idle;
  bool reshard_after_forward = true;
  bool to_smaller_mesh = false;
  bool exchange_gradients = true;
  bool reshard_after_backward = true;

  void unshard() { start_unshard(false); }
  /// The same on the current stream and the communicator's (unshard with async_op).
  void unshard_aside() { start_unshard(true); }
  void wait_for_unshard();
  void reshard();
  /// Gathers ahead of its time, as in the forward or in the backward.
  void prefetch(Stage as);
  void after_forward();
  void before_backward(bool prefetch_last);
  void after_backward();
  void finish_backward();
  bool holds_whole() const { return !parameters.empty() && parameters[0].held == Held::whole; }

 private:
  void start_unshard(bool aside);
  const Mesh& gather_mesh() const;
  std::vector<tensor::Tensor> gather_inputs(tensor::Tensor& flat) const;
  std::shared_ptr<Gathering> all_gather(bool aside) const;
  void copy_out(const Gathering& gathering);
  void copy_own();
  void prefetch_previous();
  void let_reductions_go();
  void reduce(std::vector<Parameter*> with_gradient, std::vector<tensor::Tensor> gradients);
  void copy_in(const std::vector<tensor::Tensor>& gradients, const tensor::Tensor& input) const;
  std::uint8_t all_reduce(tensor::Tensor& output);
  void hand_out(const std::vector<Parameter*>& to, const tensor::Tensor& output);

  Shared& shared_;
  tensor::Runtime& runtime_;
  const Meshes& meshes_;
  std::uint32_t label_;
  std::shared_ptr<Gathering> gathering_;
  std::vector<std::size_t> forward_indices_;  // where in the order of forwards
  std::optional<std::uint32_t> resharded_, reduced_;
  tensor::Tensor all_reduced_;  // kept until the next reduction: no other may get its memory
  std::uint32_t all_reduced_event_ = 0;
};

}  // namespace shardfit::program::fsdp2
