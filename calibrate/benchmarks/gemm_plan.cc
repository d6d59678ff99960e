// The matrix products of a plan.
#include "calibrate/benchmarks/products.h"
#include "calibrate/benchmarks/rows.h"

namespace shardfit::calibrate {

void run_gemm_plan(Session& session) { time_products(session, ProductCall::strided); }

}  // namespace shardfit::calibrate
