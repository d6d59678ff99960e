// Matrix products in fp8 through cuBLASLt.
#include <cstdint>
#include <random>
#include <vector>

#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

/// Random numbers of magnitude below 2: sign and mantissa at random, exponents of 2^-6 to 1.
void fill_e4m3(const Buffer& buffer, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> host(static_cast<std::size_t>(buffer.bytes()));
  for (std::uint8_t& byte : host) {
    const auto bits = static_cast<std::uint32_t>(random());
    const std::uint32_t exponent = 1 + (bits >> 8) % 7;  // bias 7
    byte = static_cast<std::uint8_t>((bits & 0x80) | exponent << 3 | (bits & 7));
  }
  CUDA(cudaMemcpy(buffer.data(), host.data(), host.size(), cudaMemcpyHostToDevice));
}

}  // namespace

void run_gemm_fp8(Session& session) {
  BlasLt blas;
  const Buffer workspace(blas_workspace);
  for (const Case& c : session.cases()) {
    if (!session.room_for(c)) continue;
    const ProductShape& s = c.product;
    const Buffer a(s.m * s.k), b(s.n * s.k), out(s.m * s.n * 2);
    fill_e4m3(a, 1);
    fill_e4m3(b, 2);
    const Summary seconds = session.time(
        [&](cudaStream_t stream) {
          blas.product(s, a.data(), b.data(), out.data(), workspace.data(), stream);
        },
        Cache::cold);
    session.add(c.name, Unit::seconds, seconds,
                "cublasLtMatmul, e4m3 in, bf16 out, random data, caches cold", c.work);
  }
}

}  // namespace shardfit::calibrate
