#pragma once
// NCCL through its dynamic library; enumerators are those of nccl.h, which do not change.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "calibrate/gpu/library.h"
#include "tensor/program.h"

namespace shardfit::calibrate {

struct NcclError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The library's functions; copies of its unique ids.
class Nccl {
 public:
  Nccl();
  bool there() const { return library_.there(); }
  const std::string& missing() const { return library_.missing(); }

  using UniqueId = std::array<char, 128>;
  UniqueId unique_id() const;

  /// Communicators of one process over these devices, in their order.
  std::vector<void*> all(const std::vector<int>& devices) const;
  /// One rank's communicator; blocks until all `ranks` have come.
  void* join(int ranks, const UniqueId& id, int rank) const;
  void destroy(void* communicator) const;
  /// Ends a communicator with work in flight.
  void abort(void* communicator) const;
  /// What went wrong behind the host's back; throws NcclError.
  void check_async(void* communicator) const;

  void group_start() const;
  void group_end() const;

  /// One rank's call of a collective of the whole buffer `bytes` (as nccl-tests counts it: the
  /// gathered result, the input that is scattered), between `from` and `to`, which may be the same
  /// buffer. all_to_all is sends and receives in a group.
  void queue(CollectiveKind kind, DType dtype, std::int64_t bytes, int rank, int ranks, int peer,
             const void* from, void* to, void* communicator, cudaStream_t stream) const;

 private:
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const;

  Library library_;
};

}  // namespace shardfit::calibrate
