#include "calibrate/gpu/blas.h"

#include <library_types.h>

#include <stdexcept>
#include <vector>

#include "calibrate/gpu/objects.h"

namespace shardfit::calibrate {
namespace {

// cublas_api.h
constexpr int op_n = 0, op_t = 1;
constexpr int compute_32f = 68, compute_32f_tf32 = 77;
constexpr int default_algorithm = -1;
// cublasLt.h
constexpr int desc_transa = 3, desc_transb = 4;

void check(int status, const char* call) {
  if (status == 0) return;
  throw CudaError(cudaErrorUnknown,
                  std::string(call) + " failed with cuBLAS status " + std::to_string(status));
}

cudaDataType_t data_type(const std::string& rate) {
  if (rate == "bf16") return CUDA_R_16BF;
  if (rate == "fp16") return CUDA_R_16F;
  if (rate == "fp8") return CUDA_R_8F_E4M3;
  return CUDA_R_32F;
}

int compute_type(const std::string& rate) {
  return rate == "tf32" ? compute_32f_tf32 : compute_32f;
}

std::int64_t size_of(const std::string& rate) { return rate == "fp32" || rate == "tf32" ? 4 : 2; }

}  // namespace

Blas::Blas() : library_(cublas()) {
  int (*create)(void**) = nullptr;
  library_.get(create, "cublasCreate_v2");
  check(create(&handle_), "cublasCreate");
}

Blas::~Blas() {
  int (*destroy)(void*) = nullptr;
  library_.get_optional(destroy, "cublasDestroy_v2");
  if (destroy && handle_) destroy(handle_);
}

void Blas::set_stream(cudaStream_t stream) {
  int (*set)(void*, cudaStream_t) = nullptr;
  library_.get(set, "cublasSetStream_v2");
  check(set(handle_, stream), "cublasSetStream");
}

void Blas::set_workspace(void* address, std::int64_t bytes) {
  int (*set)(void*, void*, std::size_t) = nullptr;
  library_.get(set, "cublasSetWorkspace_v2");
  check(set(handle_, address, static_cast<std::size_t>(bytes)), "cublasSetWorkspace");
}

void Blas::product(const ProductShape& s, const void* a, const void* b, void* c,
                   bool shared_operands) {
  // Row major c = a b is column major c^T = b^T a^T.
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, cudaDataType_t, int,
              long long, const void*, cudaDataType_t, int, long long, const void*, void*,
              cudaDataType_t, int, long long, int, int, int) = nullptr;
  library_.get(gemm, "cublasGemmStridedBatchedEx");
  const float one = 1, zero = 0;
  const auto m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  const cudaDataType_t type = data_type(s.rate);
  const std::int64_t step = shared_operands ? 0 : 1;
  check(gemm(handle_, op_n, op_n, n, m, k, &one, b, type, n, step * s.k * s.n, a, type, k,
             step * s.m * s.k, &zero, c, type, n, s.m * s.n, static_cast<int>(s.groups),
             compute_type(s.rate), default_algorithm),
        "cublasGemmStridedBatchedEx");
}

bool Blas::grouped_product(const ProductShape& s, const void* a, const void* b, void* c) {
  int (*gemm)(void*, const int*, const int*, const int*, const int*, const int*, const void*,
              const void* const*, cudaDataType_t, const int*, const void* const*, cudaDataType_t,
              const int*, const void*, void* const*, cudaDataType_t, const int*, int, const int*,
              int) = nullptr;
  library_.get_optional(gemm, "cublasGemmGroupedBatchedEx");
  if (!gemm) return false;
  const auto groups = static_cast<std::size_t>(s.groups);
  const std::vector<int> ops(groups, op_n), ms(groups, static_cast<int>(s.n)),
      ns(groups, static_cast<int>(s.m)), ks(groups, static_cast<int>(s.k)), sizes(groups, 1);
  const std::vector<float> ones(groups, 1), zeros(groups, 0);
  std::vector<const void*> as(groups), bs(groups);
  std::vector<void*> cs(groups);
  const std::int64_t bytes = size_of(s.rate);
  for (std::size_t g = 0; g < groups; ++g) {
    const auto at = static_cast<std::int64_t>(g);
    as[g] = static_cast<const char*>(a) + at * s.m * s.k * bytes;
    bs[g] = static_cast<const char*>(b) + at * s.k * s.n * bytes;
    cs[g] = static_cast<char*>(c) + at * s.m * s.n * bytes;
  }
  // The arrays of pointers live on the device.
  const auto upload = [groups](const void* from) {
    Buffer buffer(static_cast<std::int64_t>(groups * sizeof(void*)));
    CUDA(cudaMemcpy(buffer.data(), from, groups * sizeof(void*), cudaMemcpyHostToDevice));
    return buffer;
  };
  const Buffer a_list = upload(as.data()), b_list = upload(bs.data()), c_list = upload(cs.data());
  const cudaDataType_t type = data_type(s.rate);
  check(gemm(handle_, ops.data(), ops.data(), ms.data(), ns.data(), ks.data(), ones.data(),
             b_list.as<const void*>(), type, ms.data(), a_list.as<const void*>(), type, ks.data(),
             zeros.data(), c_list.as<void*>(), type, ms.data(), static_cast<int>(groups),
             sizes.data(), compute_type(s.rate)),
        "cublasGemmGroupedBatchedEx");
  CUDA(cudaDeviceSynchronize());  // before the lists go
  return true;
}

BlasLt::BlasLt() : library_(cublas_lt()) {
  int (*create)(void**) = nullptr;
  library_.get(create, "cublasLtCreate");
  check(create(&handle_), "cublasLtCreate");
}

BlasLt::~BlasLt() {
  int (*destroy)(void*) = nullptr;
  library_.get_optional(destroy, "cublasLtDestroy");
  if (destroy && handle_) destroy(handle_);
}

void BlasLt::product(const ProductShape& s, const void* a, const void* b, void* c, void* workspace,
                     cudaStream_t stream) {
  int (*make_desc)(void**, int, cudaDataType_t) = nullptr;
  int (*set_desc)(void*, int, const void*, std::size_t) = nullptr;
  int (*free_desc)(void*) = nullptr;
  int (*make_layout)(void**, cudaDataType_t, std::uint64_t, std::uint64_t, std::int64_t) = nullptr;
  int (*free_layout)(void*) = nullptr;
  int (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                const void*, void*, void*, void*, const void*, void*, std::size_t, cudaStream_t) =
      nullptr;
  library_.get(make_desc, "cublasLtMatmulDescCreate");
  library_.get(set_desc, "cublasLtMatmulDescSetAttribute");
  library_.get(free_desc, "cublasLtMatmulDescDestroy");
  library_.get(make_layout, "cublasLtMatrixLayoutCreate");
  library_.get(free_layout, "cublasLtMatrixLayoutDestroy");
  library_.get(matmul, "cublasLtMatmul");
  struct Objects {
    void *desc = nullptr, *a = nullptr, *b = nullptr, *c = nullptr;
    int (*free_desc)(void*);
    int (*free_layout)(void*);
    ~Objects() {
      if (desc) free_desc(desc);
      for (void* layout : {a, b, c}) {
        if (layout) free_layout(layout);
      }
    }
  } o{nullptr, nullptr, nullptr, nullptr, free_desc, free_layout};
  // fp8 wants the first operand transposed, the second not: c^T (n x m) = b (k x n)^T a^T (k x m).
  check(make_desc(&o.desc, compute_32f, CUDA_R_32F), "cublasLtMatmulDescCreate");
  check(set_desc(o.desc, desc_transa, &op_t, sizeof op_t), "cublasLtMatmulDescSetAttribute");
  check(set_desc(o.desc, desc_transb, &op_n, sizeof op_n), "cublasLtMatmulDescSetAttribute");
  const auto rows = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
  check(make_layout(&o.a, CUDA_R_8F_E4M3, rows(s.k), rows(s.n), s.k), "cublasLtMatrixLayoutCreate");
  check(make_layout(&o.b, CUDA_R_8F_E4M3, rows(s.k), rows(s.m), s.k), "cublasLtMatrixLayoutCreate");
  check(make_layout(&o.c, CUDA_R_16BF, rows(s.n), rows(s.m), s.n), "cublasLtMatrixLayoutCreate");
  const float one = 1, zero = 0;
  check(matmul(handle_, o.desc, &one, b, o.a, a, o.b, &zero, c, o.c, c, o.c, nullptr, workspace,
               static_cast<std::size_t>(blas_workspace), stream),
        "cublasLtMatmul");
}

}  // namespace shardfit::calibrate
