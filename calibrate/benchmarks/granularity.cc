// What cudaMalloc takes for small and odd sizes.
#include <vector>

#include "base/format.h"
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_granularity(Session& session) {
  // Many of one size: the driver shares its blocks between small ones.
  constexpr int many = 64;
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{512}, std::int64_t{1} << 16, std::int64_t{1} << 20,
        (std::int64_t{1} << 20) + 1, std::int64_t{2} << 20, (std::int64_t{2} << 20) + 1}) {
    const std::int64_t before = memory_info().free;
    std::vector<Buffer> buffers;
    for (int i = 0; i < many; ++i) buffers.emplace_back(size);
    session.add_once("taken for " + format_bytes_exact(Bytes(size)), Unit::bytes,
                     static_cast<double>(before - memory_info().free) / many,
                     "free bytes before less after, a share of 64 allocations");
  }
}

}  // namespace shardfit::calibrate
