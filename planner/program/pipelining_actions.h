#pragma once
// What a rank of torch.distributed.pipelining does in a step where it has several stages: its
// schedule, lowered to passes, exchanges, gathers (torch/distributed/pipelining/schedules.py).

#include <compare>
#include <cstdint>
#include <vector>

namespace shardfit::program {

/// ScheduleGPipe, Schedule1F1B; of several stages a rank: ScheduleInterleaved1F1B,
/// ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble.
enum class PipeliningSchedule : std::uint8_t {
  gpipe,
  one_forward_one_backward,
  interleaved,
  interleaved_zero_bubble,
  zero_bubble_v,
};

/// The order of the stages over the ranks: in turn, or there and back (two a rank).
inline bool goes_back(PipeliningSchedule schedule) {
  return schedule == PipeliningSchedule::zero_bubble_v;
}

struct PipeliningShape {
  PipeliningSchedule schedule = PipeliningSchedule::interleaved;
  std::int64_t ranks = 2;
  std::int64_t stages_a_rank = 2;
  std::int64_t micro_batches = 1;

  std::int64_t stages() const { return ranks * stages_a_rank; }
  std::int64_t rank_of(std::int64_t stage) const {
    return goes_back(schedule) && stage >= ranks ? stages() - 1 - stage : stage % ranks;
  }
};

enum class ActionKind : std::uint8_t {
  forward,
  full_backward,
  backward_input,   // the gradient of the stage's input
  backward_weight,  // then those of its parameters
  unshard,
  reshard,
  reduce_gradients,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
};

struct PipelineAction {
  ActionKind kind = ActionKind::forward;
  std::int64_t stage = 0;
  std::int64_t micro_batch = -1;  // of passes and exchanges
  auto operator<=>(const PipelineAction&) const = default;
};

/// The passes of each rank (_calculate_single_rank_operations).
std::vector<std::vector<PipelineAction>> pipelining_passes(const PipeliningShape& shape);

/// All that each rank does: parameters of up to three stages are gathered ahead of their passes
/// (_add_unshard_reshard), gradients are reduced behind a stage's last backward (_add_reduce_grad),
/// sends stand behind what they send and receives where their sender has sent (_add_send_recv).
/// Throws std::runtime_error where the micro-batches do not go into equal rounds.
std::vector<std::vector<PipelineAction>> pipelining_actions(const PipeliningShape& shape);

}  // namespace shardfit::program
