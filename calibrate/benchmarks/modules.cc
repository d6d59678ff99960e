// Bytes that loaded kernels take.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/session.h"
#include "calibrate/gpu/small_kernels.h"

namespace shardfit::calibrate {

void run_modules(Session& session) {
  const std::int64_t before = memory_info().free;
  const int kernels = kernels::load_all() + kernels::load_small();
  session.add_once("kernels loaded", Unit::count, kernels, "every kernel of this program");
  session.add_once("bytes of them", Unit::bytes, static_cast<double>(before - memory_info().free),
                   "free bytes before less after; those of the image loaded at start not counted");
}

}  // namespace shardfit::calibrate
