// Bytes of a cuBLAS handle, of its first product, and with a workspace of ours.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_blas_handle(Session& session) {
  const ProductShape shape{"bf16", 1024, 1024, 1024, 1};
  const Buffer a(2 << 20), b(2 << 20), c(2 << 20);
  const std::int64_t before = memory_info().free;
  Blas blas;
  const std::int64_t made = memory_info().free;
  blas.set_stream(session.stream());
  blas.product(shape, a.data(), b.data(), c.data());
  CUDA(cudaStreamSynchronize(session.stream()));
  const std::int64_t used = memory_info().free;
  // With a workspace given, as PyTorch gives one, the handle's own is not needed.
  const Buffer workspace(blas_workspace);
  const std::int64_t given_from = memory_info().free;
  Blas other;
  other.set_stream(session.stream());
  other.set_workspace(workspace.data(), workspace.bytes());
  other.product(shape, a.data(), b.data(), c.data());
  CUDA(cudaStreamSynchronize(session.stream()));
  const std::int64_t given = memory_info().free;
  session.add_once("handle", Unit::bytes, static_cast<double>(before - made),
                   "free bytes before less after cublasCreate");
  session.add_once("first product", Unit::bytes, static_cast<double>(made - used),
                   "free bytes before less after a bf16 product of 1024: kernels, workspace");
  session.add_once("second handle and product", Unit::bytes,
                   static_cast<double>(given_from - given),
                   "the same for another handle with a workspace of ours, kernels being loaded");
}

}  // namespace shardfit::calibrate
