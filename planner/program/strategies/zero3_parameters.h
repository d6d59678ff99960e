#pragma once
// Parameters of ZeRO-3: each rank holds a part of each, the whole is gathered for the time it is
// used (deepspeed/runtime/zero/partition_parameters.py).

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "model/machine.h"
#include "program/deepspeed.h"

namespace shardfit::program {

struct Gather;

/// One parameter, cut into equal parts of the ranks (rounded up).
struct ShardedParameter {
  enum class Status : std::uint8_t { not_available, in_flight, available };

  tensor::Tensor whole;  // of the model; without memory while the parameter is not available
  tensor::Tensor shard;  // this rank's part, once there is one
  std::int32_t id = 0;   // in the order of construction
  std::int64_t count = 0, part = 0;  // elements
  bool persistent = false;           // stays gathered once it has been used
  Status status = Status::available;
  std::vector<const void*> active;  // modules that use it now
  std::shared_ptr<Gather> gather;   // that is under way and has not been waited for through it

  void activate(const void* module);
  void deactivate(const void* module);
};

/// A gather of several parameters: one flat tensor that each is copied out of, or the parameter's
/// own memory where it is one.
struct Gather {
  std::vector<ShardedParameter*> parameters;
  tensor::Tensor flat;
  std::vector<tensor::Tensor> inputs;  // parts copied from the host, kept while the gather runs
  std::uint32_t done = 0;              // event
  bool complete = false;
  bool local = false;  // one rank: nothing is exchanged
};

class ShardedParameters {
 public:
  ShardedParameters(const DeepSpeedJob& job, tensor::Runtime& runtime);

  /// Makes a parameter of the model one of these; still whole.
  ShardedParameter& add(const tensor::Tensor& whole);
  ShardedParameter* find(const tensor::Tensor& whole);
  /// Drops those that are not among `kept` (a tied parameter's own memory).
  void keep_only(const std::vector<model::Parameter>& kept);
  std::deque<ShardedParameter>& all() { return parameters_; }

  /// Takes the whole away; the first time, after this rank's part was copied out of it.
  void partition(ShardedParameter& p);
  /// Starts to gather `wanted` (ordered by id) on the current stream (all_gather_coalesced).
  std::shared_ptr<Gather> start(std::vector<ShardedParameter*> wanted);
  void wait(Gather& gather);
  /// Gathers and waits, on the current stream: one parameter, or several each into its own memory.
  void gather_now(const std::vector<ShardedParameter*>& wanted);
  /// The parts in one tensor instead of one each (utils.py, defragment); they are views of it.
  tensor::Tensor defragment(const std::vector<ShardedParameter*>& parts);

  std::int64_t ranks() const { return job_.ranks; }
  bool shards_on_host() const { return job_.offload_parameters; }

 private:
  tensor::Tensor memory(std::int64_t count, DType dtype, Category category);
  std::uint32_t all_gather(DType dtype, std::int64_t count);

  const DeepSpeedJob job_;
  tensor::Runtime& runtime_;
  std::deque<ShardedParameter> parameters_;
  std::map<const tensor::TensorBody*, ShardedParameter*> by_body_;
  std::int32_t next_id_ = 0;
};

}  // namespace shardfit::program
