// Matrix products in fp8 through cuBLASLt.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_gemm_fp8(Session& session) {
  BlasLt blas;
  const Buffer workspace(blas_workspace);
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    const ProductShape& s = c.product;
    const Buffer a(s.m * s.k), b(s.n * s.k), out(s.m * s.n * 2);
    // 0x38 is 1.0 in e4m3: any byte pattern but NaN takes the same time, and this one is right.
    CUDA(cudaMemset(a.data(), 0x38, static_cast<std::size_t>(a.bytes())));
    CUDA(cudaMemset(b.data(), 0x38, static_cast<std::size_t>(b.bytes())));
    const Summary seconds = session.time(
        [&](cudaStream_t stream) {
          blas.product(s, a.data(), b.data(), out.data(), workspace.data(), stream);
        },
        Cache::cold);
    session.add(c.name, Unit::seconds, seconds, "cublasLtMatmul, e4m3 in, bf16 out, constant data",
                c.work);
  }
}

}  // namespace shardfit::calibrate
