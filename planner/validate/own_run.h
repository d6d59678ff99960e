#pragma once
// What the person's own run said of its memory: a snapshot of PyTorch's allocator, its statistics
// as JSON, or the trial script's JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run/run.h"

namespace shardfit::validate {

struct OwnPhase {
  std::string name;
  std::optional<std::int64_t> allocated, reserved, device;
};

/// One rank of the run.
struct OwnRank {
  int rank = 0;
  std::string source;  // "trial.json", "snapshot.pickle (device 0)"
  std::optional<std::int64_t> allocated, reserved, device;  // peaks
  std::vector<OwnPhase> phases;
  std::optional<run::ByCategory> requested_by;  // at the peak, as far as call stacks tell
  std::int64_t unlabelled = 0;                  // requested bytes there that they do not tell
  std::vector<double> step_seconds;
  std::string failure;  // why it did not come to its end; "" where it did
  std::vector<std::string> notes;
};

/// The ranks of a file; a file that does not say which rank it is of gets `rank`. Throws
/// InputError.
///  - a memory snapshot (torch.cuda.memory._dump_snapshot): a pickle, read as data only;
///  - JSON: {"kind": "shardfit-trial", "ranks": [...]} (calibrate/trial), or one object or a list
///  of
///    objects, one a rank, with torch.cuda.memory_stats() or max_memory_allocated and
///    max_memory_reserved.
/// `option` is the plan's that the run is set beside: a run of another one is refused.
std::vector<OwnRank> read_own_run(const std::string& path, int rank,
                                  const std::string& option = "");

/// The ranks of a snapshot.
std::vector<OwnRank> read_snapshot(const std::string& path, int rank);

/// The use of memory that a call stack allocated, from "file:function" frames, innermost first;
/// nothing where it does not tell.
std::optional<Category> category_of_stack(const std::vector<std::string>& frames);

}  // namespace shardfit::validate
