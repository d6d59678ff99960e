// Softmax, norm, cross-entropy and an optimizer step: kernels that memory bounds.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_memory_bound(Session& session) {
  constexpr auto element = kernels::Element::f32;
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    const std::int64_t rows = c.product.m, columns = c.product.n, count = rows * columns;
    const int buffers = c.kind == "adamw" ? 4 : c.kind == "cross-entropy" ? 1 : 2;
    std::vector<Buffer> data;
    for (int i = 0; i < buffers; ++i) {
      data.emplace_back(count * 4);
      kernels::fill(data.back().data(), count, element, static_cast<std::uint32_t>(i),
                    session.stream());
    }
    const Buffer labels(rows * 8), losses(rows * 4);
    CUDA(cudaMemset(labels.data(), 0, static_cast<std::size_t>(labels.bytes())));
    if (c.kind == "adamw") {  // the second moment is not negative
      CUDA(cudaMemset(data[3].data(), 0, static_cast<std::size_t>(data[3].bytes())));
    }
    const Summary seconds = session.time(
        [&](cudaStream_t stream) {
          if (c.kind == "softmax") {
            kernels::softmax(data[0].data(), data[1].data(), rows, columns, element, stream);
          } else if (c.kind == "rms-norm") {
            kernels::norm(data[0].data(), data[1].data(), rows, columns, false, element, stream);
          } else if (c.kind == "cross-entropy") {
            kernels::cross_entropy(data[0].data(), labels.as<std::int64_t>(), losses.as<float>(),
                                   rows, columns, element, stream);
          } else {
            kernels::adamw(data[0].as<float>(), data[1].as<float>(), data[2].as<float>(),
                           data[3].as<float>(), count, {}, stream);
          }
        },
        Cache::cold);
    session.add(c.name, Unit::seconds, seconds, "our own kernel, fp32, caches cold", c.work);
    Summary rate = seconds;
    rate.median = seconds.median > 0 ? c.work / seconds.median : 0;
    session.add(c.name + " rate", Unit::bytes_per_second, rate,
                "least bytes that must move over the time", c.work);
  }
}

}  // namespace shardfit::calibrate
