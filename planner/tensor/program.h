#pragma once
// The program of one rank: what it allocates, frees and computes, in the order in which the
// training stack does it. One program is run against the memory clock, the allocator and the time
// clock.

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace shardfit {

/// The seven uses of device memory; every storage has exactly one, so they sum to the total.
enum class Category : std::uint8_t {
  parameter,
  gradient,
  optimizer_state,
  activation,
  temporary,
  communication,
  workspace,
};
inline constexpr int category_count = 7;
constexpr const char* category_name(Category category) {
  constexpr const char* names[] = {"parameters",  "gradients",   "optimizer_states",
                                   "activations", "temporaries", "communication",
                                   "workspace"};
  return names[static_cast<int>(category)];
}

/// One storage of the program: a piece of memory, whatever views there are on it.
struct StorageInfo {
  std::int64_t bytes = 0;  // as requested, not rounded
  Category category = Category::temporary;
  std::uint8_t stream = 0;
  bool backward = false;     // allocated by the backward pass
  const char* kind = "";     // operator kind that allocated it (static text)
  std::uint32_t module = 0;  // index into Program::modules
};

/// What an instruction does; `id` and `stream` of Instruction mean:
enum class Action : std::uint8_t {
  allocate,       // storage, of that stream's pool
  release,        // storage
  phase,          // phase mark
  empty_cache,    //
  reset_peaks,    //
  compute,        // index into Program::computes, queued on that stream
  collective,     // index into Program::collectives, queued on that stream
  record_event,   // event, done when that stream has done what was queued before; may be recorded
                  // anew
  wait_event,     // event: that stream goes on when its last record is done
  host_wait,      // event: the host queues nothing more until then
  record_stream,  // storage: used on that stream too, so its block is free only when that has
                  // caught up
};

struct Instruction {
  Action action;
  std::uint8_t stream = 0;
  std::uint32_t id = 0;
};

enum class CollectiveKind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  all_to_all,
  send,
  receive,
};
constexpr const char* collective_name(CollectiveKind kind) {
  constexpr const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                   "reduce",     "all_to_all", "send",           "receive"};
  return names[static_cast<int>(kind)];
}

/// One exchange between ranks.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  DType dtype = DType::f32;
  /// The whole buffer, as nccl-tests counts it: the gathered result, the input that is scattered.
  std::int64_t bytes = 0;
  std::uint32_t group = 0;  // index into Program::groups
  std::int32_t peer = -1;   // send, receive: the other rank
  std::uint32_t module = 0;
  bool backward = false;
};

/// One operator launched on the device, for the time clock.
struct Compute {
  const char* kind = "";
  std::uint32_t module = 0;
  bool backward = false;
  DType dtype = DType::f32;
  double flops = 0;
  double bytes = 0;                  // read and written
  std::int64_t m = 0, n = 0, k = 0;  // matrix products: shape; batch in `groups`
  std::int64_t groups = 1;           // of other operators: launches

  bool operator==(const Compute&) const = default;
};

/// Passes that do the same with other storages, one behind the other: what the first does, from
/// `first_instruction` on, the next does `length` instructions and `storages` names later. A
/// storage from `floor` on is one of a pass, one below it is the same in all of them.
struct Repeat {
  std::size_t first_instruction = 0, length = 0;
  std::uint32_t passes = 0;
  std::uint32_t storages = 0, floor = 0;
};

/// The end of a phase: peaks since the previous mark belong to `name` ("forward", "backward", ...).
struct PhaseMark {
  std::string name;
  int step = 0;       // 0: loading; 1, 2, 3: optimizer steps
  bool live = false;  // the value is what is alive here, not the peak since the last mark
};

struct Program {
  std::vector<Instruction> instructions;
  std::vector<StorageInfo> storages;
  std::vector<PhaseMark> phases;
  std::vector<Compute> computes;  // several instructions may run one
  std::vector<Collective> collectives;
  std::vector<std::vector<std::int32_t>> groups;  // ranks of each communicator, ascending
  std::vector<std::string> streams{"compute"};  // names; 0 is the current stream of the main thread
  std::vector<Repeat> repeats;                      // in their order, apart from each other
  std::uint32_t events = 0;
  std::int32_t rank = 0;
  bool same_on_all_ranks = false;    // nothing in it depends on `rank`
  std::vector<std::string> modules;  // paths; 0 is the whole program
  std::int64_t parameters_total = 0;
  std::int64_t parameters_trainable = 0;
};

}  // namespace shardfit
