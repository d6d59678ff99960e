#pragma once
// Which parameters are gathered and released when: the first step is recorded, later ones prefetch
// along the recording (deepspeed/runtime/zero/partitioned_param_coordinator.py).

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "program/strategies/zero3_parameters.h"

namespace shardfit::program {

/// A module as the coordinator sees it.
struct ZeroModule {
  std::vector<ShardedParameter*> parameters;  // its own, by id; those it was seen to use as well
  std::vector<ShardedParameter*> recomputed;  // frozen ones fetched while it was recomputed
  std::int64_t gradients_remaining = 0;       // inputs whose gradients have not arrived
};

class ParameterCoordinator {
 public:
  ParameterCoordinator(const DeepSpeedJob& job, ShardedParameters& shards,
                       tensor::Runtime& runtime);

  /// One pass over the model is complete: what was recorded is the trace from now on.
  void reset_step();
  /// Before a module's forward, or before its backward.
  void enter(ZeroModule& module, bool forward);
  void leave(ZeroModule& module, bool forward);
  /// Of modules whose backward has ended without their inputs' gradients.
  void release_leftovers();
  /// Everything, persistent parameters too (partition_all_parameters).
  void release_all();

 private:
  enum class Mode : std::uint8_t { invalid, record, complete };
  struct InTrace {
    ShardedParameter* parameter;
    std::int64_t last_used;  // step
  };

  void compare_with_ranks(std::size_t numbers);
  void check_trace(const ZeroModule& module);
  void invalidate();
  void fetch(ZeroModule& module, bool forward);
  void advance_queue(const ZeroModule& module);
  void prefetch();
  void gather(const std::vector<ShardedParameter*>& wanted);
  void wait_for(ShardedParameter& p);
  void release(ShardedParameter& p);
  void finish_in_flight();
  const std::set<ShardedParameter*>& to_release(ZeroModule& module);
  std::int64_t last_fetched(ShardedParameter* p) const;

  const DeepSpeedJob job_;
  ShardedParameters& shards_;
  tensor::Runtime& runtime_;
  std::uint8_t stream_ = 0;
  Mode mode_ = Mode::invalid;
  std::int64_t step_ = 0, available_ = 0;
  std::vector<ZeroModule*> modules_;  // in the order of entering
  std::vector<InTrace> order_;
  std::deque<InTrace> queue_;
  std::map<ShardedParameter*, std::int64_t> fetched_for_;
  std::map<std::pair<ZeroModule*, std::int64_t>, std::set<ShardedParameter*>> releases_;
  std::vector<ZeroModule*> backward_;  // entered and not left
  std::deque<std::uint32_t> fetches_;  // events of the last ones
};

}  // namespace shardfit::program
