// Matrix products by shape class.
#include "calibrate/benchmarks/products.h"
#include "calibrate/benchmarks/rows.h"

namespace shardfit::calibrate {

void run_gemm(Session& session) { time_products(session, ProductCall::strided); }

}  // namespace shardfit::calibrate
