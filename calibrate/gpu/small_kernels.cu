// The kernels of `smoke` that are only right.
#include "calibrate/gpu/small_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "calibrate/gpu/check.h"
#include "calibrate/small/operators.h"

namespace shardfit::calibrate::kernels {
namespace {

constexpr int block = 256;

template <class A>
__device__ A load(const void* p, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f64:
      return static_cast<A>(static_cast<const double*>(p)[i]);
    case DType::f32:
      return static_cast<A>(static_cast<const float*>(p)[i]);
    case DType::bf16:
      return static_cast<A>(__bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]));
    case DType::f16:
      return static_cast<A>(__half2float(static_cast<const __half*>(p)[i]));
    case DType::i64:
      return static_cast<A>(static_cast<const std::int64_t*>(p)[i]);
    case DType::i32:
      return static_cast<A>(static_cast<const std::int32_t*>(p)[i]);
    case DType::i16:
      return static_cast<A>(static_cast<const std::int16_t*>(p)[i]);
    case DType::i8:
      return static_cast<A>(static_cast<const std::int8_t*>(p)[i]);
    default:
      return static_cast<A>(static_cast<const std::uint8_t*>(p)[i]);
  }
}

template <class A>
__device__ void store(void* p, DType dtype, std::int64_t i, A x) {
  switch (dtype) {
    case DType::f64:
      static_cast<double*>(p)[i] = static_cast<double>(x);
      break;
    case DType::f32:
      static_cast<float*>(p)[i] = static_cast<float>(x);
      break;
    case DType::bf16:
      static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(static_cast<float>(x));
      break;
    case DType::f16:
      static_cast<__half*>(p)[i] = __float2half(static_cast<float>(x));
      break;
    case DType::i64:
      static_cast<std::int64_t*>(p)[i] = static_cast<std::int64_t>(x);
      break;
    case DType::i32:
      static_cast<std::int32_t*>(p)[i] = static_cast<std::int32_t>(x);
      break;
    case DType::i16:
      static_cast<std::int16_t*>(p)[i] = static_cast<std::int16_t>(x);
      break;
    case DType::i8:
      static_cast<std::int8_t*>(p)[i] = static_cast<std::int8_t>(x);
      break;
    default:
      static_cast<std::uint8_t*>(p)[i] = static_cast<std::uint8_t>(x);
  }
}

struct Inputs {
  const void* data[4];
  DType dtype;
};

template <class A>
struct Reader {
  Inputs inputs;
  __host__ __device__ A operator()(int input, std::int64_t index) const {
#ifdef __CUDA_ARCH__
    return load<A>(inputs.data[input], inputs.dtype, index);
#else
    return A(input + index);  // never run: small_operator is for both
#endif
  }
};

__device__ std::int64_t first() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <class A>
__global__ void small_kernel(SmallShape shape, Inputs inputs, void* out, DType result,
                             std::int64_t count) {
  const Reader<A> reader{inputs};
  const std::int64_t i = first();
  if (i < count) store(out, result, i, small_operator<A>(shape, reader, i));
}

__global__ void fill_kernel(void* to, std::int64_t count, DType dtype, std::uint32_t seed,
                            double reach) {
  const std::int64_t i = first();
  if (i >= count) return;
  const float value = value_at(seed, i);
  if (dtype == DType::boolean) {
    store(to, dtype, i, value > 0 ? 1 : 0);
  } else if (dtype <= DType::f16) {
    store(to, dtype, i, value);
  } else {
    store(to, dtype, i, floor(static_cast<double>(value) * reach + 0.5));
  }
}

unsigned grid_for(std::int64_t count) {
  return static_cast<unsigned>(std::max<std::int64_t>(1, (count + block - 1) / block));
}

}  // namespace

void small_fill(void* to, std::int64_t count, DType dtype, std::uint32_t seed, std::int64_t reach,
                cudaStream_t stream) {
  fill_kernel<<<grid_for(count), block, 0, stream>>>(to, count, dtype, seed,
                                                     static_cast<double>(reach));
  CUDA(cudaGetLastError());
}

void small(const SmallShape& shape, const void* const (&inputs)[4], DType dtype, void* out,
           DType result, cudaStream_t stream) {
  const std::int64_t count = shape.rows * result_a_row(shape);
  const Inputs in{{inputs[0], inputs[1], inputs[2], inputs[3]}, dtype};
  if (dtype == DType::f64) {
    small_kernel<double><<<grid_for(count), block, 0, stream>>>(shape, in, out, result, count);
  } else if (is_floating(dtype) || is_floating(result)) {
    small_kernel<float><<<grid_for(count), block, 0, stream>>>(shape, in, out, result, count);
  } else {
    small_kernel<std::int64_t>
        <<<grid_for(count), block, 0, stream>>>(shape, in, out, result, count);
  }
  CUDA(cudaGetLastError());
}

int load_small() {
  cudaFuncAttributes attributes;
  int loaded = 0;
  const auto load_one = [&](auto* kernel) {
    CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
    ++loaded;
  };
  load_one(fill_kernel);
  load_one(small_kernel<float>);
  load_one(small_kernel<double>);
  load_one(small_kernel<std::int64_t>);
  return loaded;
}

}  // namespace shardfit::calibrate::kernels
