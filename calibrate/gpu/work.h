#pragma once
// Operators of a plan as kernels on a device, on whatever storages are alive.

#include <set>
#include <utility>
#include <vector>

#include "calibrate/confirm.h"
#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/objects.h"

namespace shardfit::calibrate {

/// Storages that are alive, by size: operands are taken from the largest, which is at least as
/// large as any operand of the program. What stands in them does not matter.
class LiveStorages {
 public:
  void add(std::uint32_t storage, std::int64_t bytes, void* address);
  void remove(std::uint32_t storage, std::int64_t bytes);
  struct Place {
    void* address = nullptr;
    std::int64_t bytes = 0;
  };
  /// The largest, and one more where there is one (else the largest again).
  Place largest() const { return of(0); }
  Place second() const { return of(1); }

 private:
  Place of(std::size_t rank) const;
  std::set<std::pair<std::int64_t, std::uint32_t>> by_size_;
  std::vector<void*> addresses_;
};

class Operators {
 public:
  explicit Operators(ConfirmedRank& counts) : counts_(&counts) {}
  /// cuBLAS's workspace, as PyTorch gives it one out of its allocator; null: its own.
  void set_workspace(void* address, std::int64_t bytes);
  /// Queues the operator on a stream.
  void launch(const Compute& compute, const LiveStorages& live, cudaStream_t stream);

 private:
  void product(const ProductShape& shape, std::int64_t times, const Compute& compute,
               const LiveStorages& live, cudaStream_t stream);

  Blas blas_;
  cudaStream_t stream_ = nullptr;
  bool stream_set_ = false;
  void* workspace_ = nullptr;
  std::int64_t workspace_bytes_ = 0;
  ConfirmedRank* counts_;
};

}  // namespace shardfit::calibrate
