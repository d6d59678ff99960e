#pragma once
// cuBLAS and cuBLASLt through their dynamic libraries. No header of theirs is needed; enumerators
// are those of cublas_api.h and cublasLt.h, which do not change between releases.

#include <cuda_runtime_api.h>

#include "calibrate/benchmarks.h"
#include "calibrate/gpu/library.h"

namespace shardfit::calibrate {

/// One handle of cuBLAS on one device.
class Blas {
 public:
  /// Throws std::runtime_error where the library is not there or refuses.
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  void set_stream(cudaStream_t stream);
  /// c (m x n) = a (m x k) b (k x n), `groups` times, all row major and contiguous one group behind
  /// the other; fp32, tf32, bf16 or fp16 with fp32 sums, c of the inputs' type.
  /// Where the operands are shared, all groups take the same ones.
  void product(const ProductShape& shape, const void* a, const void* b, void* c,
               bool shared_operands = false);
  /// Until the next set_stream.
  void set_workspace(void* address, std::int64_t bytes);
  /// The same through cublasGemmGroupedBatchedEx, `groups` problems of one group each; false where
  /// this cuBLAS has none (before 12.5).
  bool grouped_product(const ProductShape& shape, const void* a, const void* b, void* c);

 private:
  Library library_;
  void* handle_ = nullptr;
};

/// cuBLASLt, for fp8 (e4m3 in, bf16 out).
class BlasLt {
 public:
  BlasLt();
  ~BlasLt();
  BlasLt(const BlasLt&) = delete;
  BlasLt& operator=(const BlasLt&) = delete;

  /// c (m x n, bf16) = a (m x k, fp8) b^T (n x k, fp8); `workspace` of 32 MiB.
  void product(const ProductShape& shape, const void* a, const void* b, void* c, void* workspace,
               cudaStream_t stream);

 private:
  Library library_;
  void* handle_ = nullptr;
};

inline constexpr std::int64_t blas_workspace = 32 << 20;

}  // namespace shardfit::calibrate
