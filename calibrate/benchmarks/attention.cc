// Fused attention by a plain kernel of our own: a lower bound, never the library's rate.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_attention(Session& session) {
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    const Buffer q(c.bytes), k(c.bytes), v(c.bytes), out(c.bytes);
    const auto element = kernels::Element::bf16;
    std::uint32_t seed = 1;
    for (const Buffer* buffer : {&q, &k, &v}) {
      kernels::fill(buffer->data(), c.bytes / 2, element, seed++, session.stream());
    }
    const Summary seconds = session.time(
        [&](cudaStream_t stream) {
          kernels::attention(q.data(), k.data(), v.data(), out.data(), c.product.groups,
                             c.product.m, c.product.k, true, element, stream);
        },
        Cache::cold);
    session.add(c.name, Unit::seconds, seconds,
                "our own kernel on fp32 units: a lower bound for a library's fused one", c.work);
  }
}

}  // namespace shardfit::calibrate
