#pragma once
// The program of one rank, done on a real device.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "calibrate/confirm.h"
#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/nccl.h"
#include "calibrate/gpu/nvml.h"
#include "calibrate/gpu/segments.h"
#include "calibrate/gpu/work.h"

namespace shardfit::calibrate {

/// What the ranks of one replay share.
struct ReplayShared {
  const Nccl* nccl = nullptr;                                     // null: no exchanges
  std::map<std::vector<std::int32_t>, Nccl::UniqueId> group_ids;  // of groups of more than one
  std::atomic<bool> stop{false};                                  // a rank has failed
  double deadline = 0;                                            // of the host's clock
  double patience = 20;  // seconds beyond it; then something hangs
  int ranks = 1;
  std::atomic<int> ready{0};  // ranks that have come as far as their exchanges
};

class RankReplay {
 public:
  /// Throws CudaError and NcclError.
  RankReplay(const PlannedOption& option, const PlannedGpu& gpu, int device, Way way,
             const ConfirmOptions& options, ReplayShared& shared);
  ~RankReplay();
  RankReplay(const RankReplay&) = delete;
  RankReplay& operator=(const RankReplay&) = delete;

  /// Does the program to its end, to the deadline, or to the first failure of any rank; says in
  /// `result` what was seen. Throws nothing.
  void run(ConfirmedRank& result);

 private:
  struct Stopped {};  // another rank has failed

  void step(const Instruction& instruction);
  void allocate(const Instruction& instruction);
  void release(std::uint32_t storage);
  void compute(const Instruction& instruction);
  void exchange(const Instruction& instruction);
  void end_phase(const PhaseMark& mark, bool last_of_step);
  void wait_all();
  void wait(cudaStream_t stream);
  void meet();
  void join_groups();
  void read_levels(const PhaseMark& mark);
  std::string where() const;

  const PlannedGpu& gpu_;
  const Program& program_;
  int device_;
  Way way_;
  ReplayShared& shared_;
  int steps_;

  Segments segments_;
  std::optional<run::CachingAllocator> allocator_;
  cudaMemPool_t pool_ = nullptr;
  std::vector<run::BlockHandle> handles_;  // by storage
  std::vector<void*> addresses_;
  LiveStorages live_;
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::optional<Operators> operators_;
  std::map<std::uint32_t, void*> communicators_;  // by group
  std::vector<std::pair<Event, Event>> exchange_times_;

  ConfirmedRank* result_ = nullptr;
  Nvml nvml_;
  void* nvml_device_ = nullptr;
  std::size_t at_ = 0;  // instruction
  int step_ = 0;        // that is under way; 0: loading
  double step_from_ = 0;
};

}  // namespace shardfit::calibrate
