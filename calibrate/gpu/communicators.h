#pragma once
// NCCL over devices of one process, driven by one thread.

#include <vector>

#include "calibrate/gpu/nccl.h"
#include "calibrate/gpu/objects.h"

namespace shardfit::calibrate {

/// Two buffers of each device.
struct GroupBuffers {
  GroupBuffers(const std::vector<int>& devices, std::int64_t bytes);
  std::vector<Buffer> from, to;
};

class Communicators {
 public:
  Communicators(const Nccl& nccl, const std::vector<int>& devices);
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  cudaStream_t stream(std::size_t rank) const { return streams_[rank]; }
  /// Queues the collective of every rank; `send` is from each rank to the next, and received.
  void run(CollectiveKind kind, std::int64_t bytes, const GroupBuffers& buffers) const;
  /// Until all have ended; throws NcclError where the exchange was lost.
  void wait() const;

 private:
  const Nccl& nccl_;
  std::vector<int> devices_;
  std::vector<Stream> streams_;
  std::vector<void*> communicators_;
};

}  // namespace shardfit::calibrate
