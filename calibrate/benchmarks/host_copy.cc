// To and from the host, pinned and pageable.
#include <vector>

#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/series.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

/// Host memory, page-locked or not; every page touched.
class HostBuffer {
 public:
  HostBuffer(std::int64_t bytes, bool pinned) {
    const auto count = static_cast<std::size_t>(bytes);
    if (pinned) {
      CUDA(cudaHostAlloc(&pinned_, count, cudaHostAllocDefault));
      std::fill_n(static_cast<char*>(pinned_), count, 1);
    } else {
      pageable_.assign(count, 1);
    }
  }
  ~HostBuffer() {
    if (pinned_) cudaFreeHost(pinned_);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() { return pinned_ ? pinned_ : pageable_.data(); }

 private:
  void* pinned_ = nullptr;
  std::vector<char> pageable_;
};

}  // namespace

void run_host_copy(Session& session) {
  Series series(session);
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    HostBuffer host(c.bytes, c.kind.starts_with("pinned"));
    const Buffer device(c.bytes);
    const bool up = c.kind.ends_with("to device");
    const auto bytes = static_cast<std::size_t>(c.bytes);
    const Summary seconds = session.time(
        [&](cudaStream_t stream) {
          CUDA(up ? cudaMemcpyAsync(device.data(), host.data(), bytes, cudaMemcpyHostToDevice,
                                    stream)
                  : cudaMemcpyAsync(host.data(), device.data(), bytes, cudaMemcpyDeviceToHost,
                                    stream));
        },
        Cache::warm);
    series.add(c.kind, c, seconds, "events around cudaMemcpyAsync");
  }
  series.fit("bytes copied");
}

}  // namespace shardfit::calibrate
