// Copy, read and write inside the device.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/series.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_device_copy(Session& session) {
  Series series(session);
  const Buffer sink(16);
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    const Buffer from(c.bytes);
    const Buffer to(c.kind == "copy" ? c.bytes : 16);
    kernels::fill(from.data(), c.bytes / 4, kernels::Element::f32, 1, session.stream());
    const Summary seconds = session.time(
        [&](cudaStream_t stream) {
          if (c.kind == "copy") {
            CUDA(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(c.bytes),
                                 cudaMemcpyDeviceToDevice, stream));
          } else if (c.kind == "read") {
            kernels::read(from.data(), c.bytes, sink.as<float>(), stream);
          } else {
            kernels::write(from.data(), c.bytes, stream);
          }
        },
        Cache::cold);
    series.add(c.kind, c, seconds, "events around one call, second-level cache overwritten before");
  }
  series.fit("bytes read or written");
}

}  // namespace shardfit::calibrate
