// The ranks of an option replayed, a thread and a device each.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "calibrate/cli.h"
#include "calibrate/gpu/replay.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

std::int64_t in_use(int device) {
  const OnDevice on(device);
  CUDA(cudaDeviceSynchronize());
  const MemoryInfo memory = memory_info();
  return memory.total - memory.free;
}

/// Ids of the groups of more than one rank; false where NCCL is missing for them.
void make_groups(const PlannedOption& option, const Nccl& nccl, ReplayShared& shared) {
  for (const PlannedGpu& gpu : option.gpus) {
    for (const auto& ranks : gpu.program.program.groups) {
      if (ranks.size() < 2 || shared.group_ids.count(ranks)) continue;
      shared.group_ids[ranks] = nccl.unique_id();
      shared.nccl = &nccl;
    }
  }
}

void replay_rank(const PlannedOption& option, std::size_t i, Way way, const ConfirmOptions& options,
                 ReplayShared& shared, ConfirmedRank& result) {
  const int device = option.gpus[i].index;
  result.rank = option.gpus[i].rank;
  result.device = device;
  std::int64_t before = 0;
  try {
    before = in_use(device);
    RankReplay replay(option, option.gpus[i], device, way, options, shared);
    replay.run(result);
  } catch (const std::exception& error) {
    shared.stop = true;
    result.failure = std::string("at the start: ") + error.what();
  }
  try {
    result.left = std::max<std::int64_t>(0, in_use(device) - before);
    // The first replay loads libraries and kernels; later ones find them, and a page or two of
    // streams come and go.
    result.libraries = way == Way::caching ? 256 << 20 : 8 << 20;
  } catch (const std::exception&) {
    result.left = -1;
    result.failure +=
        "; the device does not answer this process any more: what it held goes back "
        "when the process ends";
  }
}

/// Waits for the ranks. One that does not come back from the driver or a library cannot be ended
/// alone: then the whole process ends, and what it held goes back with it.
void watch(const std::atomic<int>& running, const ReplayShared& shared) {
  while (running > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (now() < shared.deadline + 2 * shared.patience) continue;
    std::cerr
        << "shardfit calibrate: " << running << " of " << shared.ranks
        << " ranks do not come back from the driver or NCCL: a link or a device is lost; this "
           "process ends, and what it held goes back\n";
    std::_Exit(off);
  }
}

}  // namespace

Confirmation run_confirm(const Machine& machine, const PlannedOption& option,
                         const ConfirmOptions& options) {
  Confirmation confirmation;
  confirmation.machine = machine;
  confirmation.option = option.name;
  confirmation.planned_step_seconds = option.step_seconds;
  confirmation.planned_exchange_seconds = option.exchange_seconds;
  const Nccl nccl;
  for (const Way way : {Way::caching, Way::stream_ordered}) {
    confirmation.ways.push_back({way, std::vector<ConfirmedRank>(option.gpus.size())});
    std::vector<ConfirmedRank>& ranks = confirmation.ways.back().ranks;
    ReplayShared shared;
    shared.deadline = now() + options.budget_seconds / 2;
    try {
      make_groups(option, nccl, shared);
    } catch (const std::exception& error) {
      ranks.front().failure = error.what();
      break;
    }
    shared.ranks = static_cast<int>(option.gpus.size());
    shared.patience = std::clamp(options.budget_seconds, 2.0, 20.0);
    std::atomic<int> running{shared.ranks};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < option.gpus.size(); ++i) {
      threads.emplace_back([&, i] {
        replay_rank(option, i, way, options, shared, ranks[i]);
        --running;
      });
    }
    watch(running, shared);
    for (std::thread& thread : threads) thread.join();
    if (shared.stop) break;  // the second way would meet the same
  }
  return confirmation;
}

}  // namespace shardfit::calibrate
