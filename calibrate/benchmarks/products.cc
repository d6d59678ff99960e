#include "calibrate/benchmarks/products.h"

#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/kernels.h"

namespace shardfit::calibrate {

namespace {

kernels::Element element_of(const std::string& rate) {
  if (rate == "bf16") return kernels::Element::bf16;
  return rate == "fp16" ? kernels::Element::f16 : kernels::Element::f32;
}

}  // namespace

void time_products(Session& session, ProductCall call) {
  Blas blas;
  blas.set_stream(session.stream());
  const Buffer workspace(blas_workspace);  // cuBLAS takes its own; this keeps the room for it
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    const ProductShape& s = c.product;
    const kernels::Element element = element_of(s.rate);
    const std::int64_t size = kernels::element_bytes(element);
    const Buffer a(s.groups * s.m * s.k * size), b(s.groups * s.k * s.n * size),
        out(s.groups * s.m * s.n * size);
    kernels::fill(a.data(), s.groups * s.m * s.k, element, 1, session.stream());
    kernels::fill(b.data(), s.groups * s.k * s.n, element, 2, session.stream());
    const bool grouped = call == ProductCall::by_kind && c.kind == "grouped";
    if (grouped && !blas.grouped_product(s, a.data(), b.data(), out.data())) {
      session.waive(c.name + ": this cuBLAS has no grouped products");
      continue;
    }
    const Summary seconds = session.time(
        [&](cudaStream_t) {
          if (grouped) {
            blas.grouped_product(s, a.data(), b.data(), out.data());
          } else {
            blas.product(s, a.data(), b.data(), out.data());
          }
        },
        Cache::cold);
    session.add(c.name, Unit::seconds, seconds,
                grouped ? "cublasGemmGroupedBatchedEx on random data, the host's lists included"
                        : "cublasGemmStridedBatchedEx on random data, caches cold",
                c.work);
  }
}

}  // namespace shardfit::calibrate
