// Every pair and direction, peer access on and off.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/series.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

/// Peer access from one device to another, as it was before when it goes out of scope.
class PeerAccess {
 public:
  PeerAccess(int from, int to) : from_(from), to_(to) {
    const OnDevice on(from);
    const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      return;
    }
    CUDA(error);
    mine_ = true;
  }
  ~PeerAccess() {
    if (!mine_) return;
    cudaSetDevice(from_);
    cudaDeviceDisablePeerAccess(to_);
  }
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

 private:
  int from_, to_;
  bool mine_ = false;
};

void measure(Session& session, Series& series, const Case& c) {
  std::optional<PeerAccess> there, back;
  if (c.peer_access) {
    there.emplace(c.from, c.to);
    back.emplace(c.to, c.from);
  }
  const OnDevice on(c.from);
  const Buffer source(c.bytes);
  CUDA(cudaSetDevice(c.to));
  const Buffer target(c.bytes);
  CUDA(cudaSetDevice(c.from));
  const Stream stream;
  const Event start, end;
  const Summary seconds = session.time_events(stream, [&] {
    CUDA(cudaMemcpyPeerAsync(target.data(), c.to, source.data(), c.from,
                             static_cast<std::size_t>(c.bytes), stream));
  });
  const std::string kind = std::to_string(c.from) + " to " + std::to_string(c.to) +
                           (c.peer_access ? ", peer access" : ", through the host");
  series.add(kind, c, seconds, "events around cudaMemcpyPeerAsync");
}

}  // namespace

void run_peer_copy(Session& session) {
  Series series(session);
  std::string refused;
  for (const Case& c : session.cases()) {
    if (c.peer_access) {
      int can = 0;
      CUDA(cudaDeviceCanAccessPeer(&can, c.from, c.to));
      const std::string pair = std::to_string(c.from) + " to " + std::to_string(c.to);
      if (!can) {
        if (pair != refused) session.waive(pair + ": the devices have no peer access");
        refused = pair;
        continue;
      }
    }
    if (session.room_for(c)) measure(session, series, c);
  }
  CUDA(cudaSetDevice(session.options().device));
  series.fit("bytes copied");
}

}  // namespace shardfit::calibrate
