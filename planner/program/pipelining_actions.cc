#include "program/pipelining_actions.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace shardfit::program {
namespace {

using Actions = std::vector<PipelineAction>;

/// Counts the micro-batches of each kind of pass through each stage as they are listed.
class PassList {
 public:
  void add(ActionKind kind, std::int64_t stage) {
    actions.push_back({kind, stage, next_[{kind, stage}]++});
  }
  std::int64_t count(ActionKind kind, std::int64_t stage) { return next_[{kind, stage}]; }

  Actions actions;

 private:
  std::map<std::pair<ActionKind, std::int64_t>, std::int64_t> next_;
};

/// Rounds of as many micro-batches as there are ranks, or a few more, go through a rank's stages in
/// turn; in the form without bubbles backward passes are cut in two, and the second parts begin
/// `rank` passes later (_get_1f1b_rank_ops, _get_warmup_ops).
Actions interleaved_passes(const PipeliningShape& shape, std::int64_t rank) {
  const bool cut = shape.schedule == PipeliningSchedule::interleaved_zero_bubble;
  const std::int64_t rounds = std::max<std::int64_t>(1, shape.micro_batches / shape.ranks);
  if (shape.micro_batches % rounds != 0) {
    throw std::runtime_error("an interleaved pipeline takes its micro-batches in " +
                             std::to_string(rounds) + " equal rounds, found " +
                             std::to_string(shape.micro_batches));
  }
  const std::int64_t round = shape.micro_batches / rounds;
  const std::int64_t local = shape.stages_a_rank;
  const std::int64_t all = local * shape.micro_batches;
  const std::int64_t hops = shape.ranks - 1 - rank;
  const std::int64_t warmup = std::min((local - 1) * round + (cut ? 1 : 2) * hops, all);
  const auto forward_stage = [&](std::int64_t pass) {
    return pass / round % local * shape.ranks + rank;
  };
  const auto backward_stage = [&](std::int64_t pass) {
    return (local - 1 - pass / round % local) * shape.ranks + rank;
  };
  PassList list;
  std::int64_t weights = 0;
  for (std::int64_t i = 0; i < warmup + all; ++i) {
    if (i < all) list.add(ActionKind::forward, forward_stage(i));
    if (i < warmup) continue;
    const std::int64_t backward = i - warmup;
    list.add(cut ? ActionKind::backward_input : ActionKind::full_backward,
             backward_stage(backward));
    if (cut && backward >= rank) list.add(ActionKind::backward_weight, backward_stage(weights++));
  }
  while (cut && weights < all) list.add(ActionKind::backward_weight, backward_stage(weights++));
  return std::move(list.actions);
}

/// Qi et al. 2024, section 6: the stages go there and back (ScheduleZBVZeroBubble).
Actions zero_bubble_v_passes(const PipeliningShape& shape, std::int64_t rank) {
  constexpr ActionKind f = ActionKind::forward;
  constexpr ActionKind i = ActionKind::backward_input;
  constexpr ActionKind w = ActionKind::backward_weight;
  const std::int64_t there = rank;
  const std::int64_t back = shape.stages() - 1 - rank;
  // As many as fill the pipeline; those that are not there are left out at the end.
  const std::int64_t micro_batches = std::max(2 * shape.ranks - 1, shape.micro_batches);
  PassList list;
  const auto times = [](std::int64_t count, const auto& body) {
    for (std::int64_t k = 0; k < count; ++k) body();
  };
  const auto whole_backward = [&](std::int64_t stage) {
    list.add(i, stage);
    list.add(w, stage);
  };
  times(2 * (shape.ranks - rank) - 1, [&] { list.add(f, there); });
  times(rank, [&] {
    list.add(f, back);
    list.add(f, there);
  });
  times(shape.ranks - rank, [&] {
    list.add(f, back);
    whole_backward(back);
  });
  while (list.count(f, back) < list.count(f, there) || list.count(f, there) < micro_batches) {
    if (list.count(f, there) < micro_batches) list.add(f, there);
    whole_backward(there);
    list.add(f, back);
    whole_backward(back);
  }
  times(rank, [&] {
    list.add(i, there);
    list.add(i, back);
  });
  times(shape.ranks - rank, [&] { whole_backward(there); });
  while (list.count(w, back) < list.count(i, back)) list.add(w, back);
  while (list.count(w, there) < list.count(i, there)) list.add(w, there);
  std::erase_if(list.actions,
                [&](const PipelineAction& a) { return a.micro_batch >= shape.micro_batches; });
  return std::move(list.actions);
}

/// Stages whose passes come next, each once, at most three.
std::vector<std::int64_t> next_stages(Actions::const_iterator from, Actions::const_iterator to) {
  std::vector<std::int64_t> stages;
  for (; from != to && stages.size() < 3; ++from) {
    if (std::find(stages.begin(), stages.end(), from->stage) == stages.end()) {
      stages.push_back(from->stage);
    }
  }
  return stages;
}

Actions with_gathers(const Actions& passes) {
  Actions out;
  std::set<std::int64_t> whole;
  const auto reshard = [&](std::int64_t stage) {
    whole.erase(stage);
    out.push_back({ActionKind::reshard, stage, -1});
  };
  for (auto pass = passes.begin(); pass != passes.end(); ++pass) {
    const std::vector<std::int64_t> next = next_stages(pass, passes.end());
    for (const std::int64_t stage : std::set<std::int64_t>(whole)) {
      if (std::find(next.begin(), next.end(), stage) == next.end()) reshard(stage);
    }
    for (const std::int64_t stage : next) {
      if (whole.insert(stage).second) out.push_back({ActionKind::unshard, stage, -1});
    }
    out.push_back(*pass);
  }
  for (const std::int64_t stage : std::set<std::int64_t>(whole)) reshard(stage);
  return out;
}

Actions with_reductions(const Actions& actions, std::int64_t micro_batches) {
  Actions out;
  std::map<std::int64_t, std::int64_t> done;
  for (const PipelineAction& a : actions) {
    out.push_back(a);
    const bool last_part =
        a.kind == ActionKind::full_backward || a.kind == ActionKind::backward_weight;
    if (last_part && ++done[a.stage] == micro_batches) {
      out.push_back({ActionKind::reduce_gradients, a.stage, -1});
    }
  }
  return out;
}

bool is_backward(ActionKind kind) {
  return kind == ActionKind::full_backward || kind == ActionKind::backward_input;
}

/// Places sends and receives: ranks take turns, each with the next of its actions whose input has
/// been made.
class Exchanges {
 public:
  Exchanges(const PipeliningShape& shape, const std::vector<Actions>& actions)
      : shape_(shape), left_(actions), out_(actions.size()), done_(actions.size()) {}

  std::vector<Actions> run() {
    std::vector<std::size_t> next(left_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < left_.size(); ++rank) {
        if (next[rank] == left_[rank].size() || !ready(left_[rank][next[rank]], rank)) continue;
        take(left_[rank][next[rank]++], rank);
        moved = true;
      }
    }
    for (std::size_t rank = 0; rank < left_.size(); ++rank) {
      if (next[rank] < left_[rank].size()) {
        throw std::runtime_error("a pass of the pipeline waits for one that never comes");
      }
    }
    return std::move(out_);
  }

 private:
  bool was(std::size_t rank, ActionKind kind, std::int64_t stage, std::int64_t micro_batch) const {
    return done_[rank].count({kind, stage, micro_batch}) > 0;
  }
  bool ready(const PipelineAction& a, std::size_t rank) const {
    if (a.kind == ActionKind::forward && a.stage > 0) {
      return was(rank, ActionKind::receive_forward, a.stage, a.micro_batch) ||
             was(rank, ActionKind::forward, a.stage - 1, a.micro_batch);
    }
    if (is_backward(a.kind) && a.stage < shape_.stages() - 1) {
      return was(rank, ActionKind::receive_backward, a.stage, a.micro_batch) ||
             was(rank, ActionKind::backward_input, a.stage + 1, a.micro_batch) ||
             was(rank, ActionKind::full_backward, a.stage + 1, a.micro_batch);
    }
    return true;
  }
  void put(const PipelineAction& a, std::size_t rank) {
    out_[rank].push_back(a);
    done_[rank].insert(a);
  }
  void take(const PipelineAction& a, std::size_t rank) {
    put(a, rank);
    const bool forward = a.kind == ActionKind::forward;
    if (!forward && !is_backward(a.kind)) return;
    const std::int64_t to = a.stage + (forward ? 1 : -1);
    if (to < 0 || to == shape_.stages()) return;
    const auto receiver = static_cast<std::size_t>(shape_.rank_of(to));
    if (receiver == rank) return;
    put({forward ? ActionKind::send_forward : ActionKind::send_backward, a.stage, a.micro_batch},
        rank);
    put({forward ? ActionKind::receive_forward : ActionKind::receive_backward, to, a.micro_batch},
        receiver);
  }

  const PipeliningShape& shape_;
  std::vector<Actions> left_, out_;
  std::vector<std::set<PipelineAction>> done_;
};

}  // namespace

std::vector<Actions> pipelining_passes(const PipeliningShape& shape) {
  std::vector<Actions> all;
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    all.push_back(goes_back(shape.schedule) ? zero_bubble_v_passes(shape, rank)
                                            : interleaved_passes(shape, rank));
  }
  return all;
}

std::vector<Actions> pipelining_actions(const PipeliningShape& shape) {
  std::vector<Actions> all = pipelining_passes(shape);
  for (Actions& actions : all) {
    actions = with_reductions(with_gathers(actions), shape.micro_batches);
  }
  return Exchanges(shape, all).run();
}

}  // namespace shardfit::program
