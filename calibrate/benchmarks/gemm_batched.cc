// Batched and grouped matrix products.
#include "calibrate/benchmarks/products.h"
#include "calibrate/benchmarks/rows.h"

namespace shardfit::calibrate {

void run_gemm_batched(Session& session) { time_products(session, ProductCall::by_kind); }

}  // namespace shardfit::calibrate
