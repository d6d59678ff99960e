#include "calibrate/gpu/communicators.h"

namespace shardfit::calibrate {

GroupBuffers::GroupBuffers(const std::vector<int>& devices, std::int64_t bytes) {
  for (const int device : devices) {
    const OnDevice on(device);
    from.emplace_back(bytes);
    to.emplace_back(bytes);
    CUDA(cudaMemset(from.back().data(), 0, static_cast<std::size_t>(bytes)));
  }
}

Communicators::Communicators(const Nccl& nccl, const std::vector<int>& devices)
    : nccl_(nccl), devices_(devices) {
  for (const int device : devices) {
    const OnDevice on(device);
    streams_.emplace_back();
  }
  communicators_ = nccl.all(devices);
}

Communicators::~Communicators() {
  for (void* communicator : communicators_) {
    try {
      nccl_.destroy(communicator);
    } catch (const NcclError&) {  // it is gone either way
    }
  }
}

void Communicators::run(CollectiveKind kind, std::int64_t bytes,
                        const GroupBuffers& buffers) const {
  const auto ranks = static_cast<int>(devices_.size());
  nccl_.group_start();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto queue = [&](CollectiveKind what, int peer) {
      nccl_.queue(what, DType::u8, bytes, rank, ranks, peer, buffers.from[r].data(),
                  buffers.to[r].data(), communicators_[r], streams_[r]);
    };
    if (kind == CollectiveKind::send) {
      queue(CollectiveKind::send, (rank + 1) % ranks);
      queue(CollectiveKind::receive, (rank + ranks - 1) % ranks);
    } else {
      queue(kind, -1);
    }
  }
  nccl_.group_end();
}

void Communicators::wait() const {
  for (const Stream& stream : streams_) CUDA(cudaStreamSynchronize(stream));
  for (void* communicator : communicators_) nccl_.check_async(communicator);
}

}  // namespace shardfit::calibrate
