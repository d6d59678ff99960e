// The largest single allocation, by bisection; the last bytes of the margin are left alone.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

bool fits(std::int64_t bytes) {
  try {
    const Buffer buffer(bytes);
    return true;
  } catch (const CudaError& error) {
    if (!error.out_of_memory()) throw;
    return false;
  }
}

}  // namespace

void run_largest(Session& session) {
  constexpr std::int64_t page = 2 << 20;
  const std::int64_t free = memory_info().free;
  std::int64_t low = 0, high = (free - session.options().margin) / page + 1;  // pages
  if (high <= 1) return session.waive("less than the margin is free");
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle * page) ? low : high) = middle;
  }
  session.add_once("largest allocation", Unit::bytes, static_cast<double>(low * page),
                   "bisection to 2 MiB, up to the free bytes less the margin");
  session.add_once("not to be had in one piece", Unit::bytes,
                   static_cast<double>(free - session.options().margin - low * page),
                   "free bytes less the margin less the largest allocation");
}

}  // namespace shardfit::calibrate
