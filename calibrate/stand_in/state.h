#pragma once
// A CUDA runtime without a card: what its parts share. Memory is address space, kernels are
// accepted and not run, time is reckoned from the named device's rates.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace stand_in {

/// As the launcher describes the device (SHARDFIT_STAND_IN).
struct Profile {
  std::string name = "stand-in";
  int major = 9, minor = 0, multiprocessors = 132, count = 1;
  bool peer = true;
  std::int64_t usable = std::int64_t{80} << 30, context = std::int64_t{500} << 20;
  std::int64_t communicator = 0;  // of NCCL, with its first collective
  double bandwidth = 3e12, flops = 1e15, link = 4e11, host_link = 5e10;
};
const Profile& profile();

inline constexpr std::int64_t page = 2 << 20;
inline constexpr std::uint64_t first_address = std::uint64_t{1} << 44;
inline constexpr int address_bits = 42;  // of one device

struct Device {
  std::int64_t large = 0, small = 0;  // bytes taken: whole pages; small ones share pages
  std::uint64_t next = 0;             // address
  bool context = false;               // made; it counts as taken from the start all the same
  std::int64_t used() const { return large + (small + page - 1) / page * page; }
};

struct Pool {
  int device = 0;
  std::int64_t used = 0, reserved = 0, most_used = 0, most_reserved = 0;
  bool keeps = false;  // a synchronisation gives nothing back
};

struct Stream {
  double time = 0;  // when it has done everything queued
  bool hung = false;
  int device = 0;
  int captured = -1;  // kernels, while it is captured
};

struct Block {
  std::int64_t bytes = 0;
  int device = 0;
  Pool* pool = nullptr;
};

struct State {
  std::recursive_mutex lock;
  std::vector<Device> devices;
  std::map<std::uint64_t, Block> blocks;
  std::map<void*, Stream> streams;  // null: the default stream of every device
  std::map<void*, double> events;   // time recorded
  std::map<void*, bool> event_hung;
  std::map<void*, int> graphs;  // kernels
  std::vector<Pool> pools;      // the default ones first
  std::map<std::string, std::int64_t> calls;
  int lost = 0;            // an error that sticks
  bool link_lost = false;  // exchanges never end
};
State& state();

/// Current device and last error of the thread.
extern thread_local int current;
extern thread_local int last_error;

/// Counts and logs a call; gives the error that is injected into it (SHARDFIT_STAND_IN_FAIL), or
/// the one that sticks, else 0. `detail` goes to the log.
int enter(const char* call, std::int64_t detail = 0);
/// Whether the call just counted is to hang (SHARDFIT_STAND_IN_HANG).
bool hangs(const char* call);
/// Remembers the error as the thread's last one.
int leave(int error);

/// Takes bytes of a device; false where they are not there.
bool take(int device, std::int64_t bytes);
void give(int device, std::int64_t bytes);
std::uint64_t new_address(int device, std::int64_t bytes);
void* new_handle();
std::int64_t free_bytes(int device);

/// Adds work of so many seconds to a stream.
void queue(void* stream, double seconds);

}  // namespace stand_in
