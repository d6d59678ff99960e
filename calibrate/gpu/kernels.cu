// The kernels whose time is taken.
#include "calibrate/gpu/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "calibrate/gpu/check.h"
#include "calibrate/values.h"

namespace shardfit::calibrate::kernels {
namespace {

constexpr int block = 256;
constexpr int warp = 32;

__device__ inline float load(const float* p, std::int64_t i) { return p[i]; }
__device__ inline float load(const __nv_bfloat16* p, std::int64_t i) {
  return __bfloat162float(p[i]);
}
__device__ inline float load(const __half* p, std::int64_t i) { return __half2float(p[i]); }
__device__ inline void store(float* p, std::int64_t i, float x) { p[i] = x; }
__device__ inline void store(__nv_bfloat16* p, std::int64_t i, float x) {
  p[i] = __float2bfloat16(x);
}
__device__ inline void store(__half* p, std::int64_t i, float x) { p[i] = __float2half(x); }

__device__ inline std::int64_t first() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float warp_sum(float x) {
  for (int d = warp / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffU, x, d);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int d = warp / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, d));
  return x;
}
/// Over the threads of a block; every thread gets the result.
__device__ inline float block_reduce(float x, bool maximum) {
  __shared__ float parts[block / warp];
  __syncthreads();
  x = maximum ? warp_max(x) : warp_sum(x);
  if (threadIdx.x % warp == 0) parts[threadIdx.x / warp] = x;
  __syncthreads();
  float result = parts[0];
  for (int i = 1; i < block / warp; ++i)
    result = maximum ? fmaxf(result, parts[i]) : result + parts[i];
  return result;
}

template <class T>
__global__ void fill_kernel(T* to, std::int64_t count, std::uint32_t seed) {
  for (std::int64_t i = first(); i < count; i += stride()) {
    store(to, i, value_at(seed, i));
  }
}

__global__ void read_kernel(const uint4* from, std::int64_t count, float* sink) {
  std::uint32_t x = 0;
  for (std::int64_t i = first(); i < count; i += stride()) {
    const uint4 v = from[i];
    x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (x == 0x5bd1e995U) *sink = 1;  // keeps the loads alive, hardly ever true
}

__global__ void write_kernel(uint4* to, std::int64_t count) {
  for (std::int64_t i = first(); i < count; i += stride()) {
    const auto x = static_cast<std::uint32_t>(i);
    to[i] = make_uint4(x, x + 1, x + 2, x + 3);
  }
}

__global__ void touch_kernel(uint4* buffer, std::int64_t count, std::int64_t moved) {
  for (std::int64_t i = first(); i < moved; i += stride()) {
    uint4 v = buffer[i % count];
    v.x += 1;
    buffer[i % count] = v;
  }
}

__global__ void spin_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

__global__ void empty_kernel() {}

template <class T>
__global__ void softmax_kernel(const T* in, T* out, std::int64_t columns) {
  const T* row = in + blockIdx.x * columns;
  T* to = out + blockIdx.x * columns;
  float top = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < columns; i += block) top = fmaxf(top, load(row, i));
  top = block_reduce(top, true);
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += block) sum += expf(load(row, i) - top);
  sum = block_reduce(sum, false);
  for (std::int64_t i = threadIdx.x; i < columns; i += block) {
    store(to, i, expf(load(row, i) - top) / sum);
  }
}

template <class T>
__global__ void norm_kernel(const T* in, T* out, std::int64_t columns, bool centred) {
  const T* row = in + blockIdx.x * columns;
  T* to = out + blockIdx.x * columns;
  float mean = 0;
  if (centred) {
    for (std::int64_t i = threadIdx.x; i < columns; i += block) mean += load(row, i);
    mean = block_reduce(mean, false) / static_cast<float>(columns);
  }
  float square = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += block) {
    const float x = load(row, i) - mean;
    square += x * x;
  }
  square = block_reduce(square, false);
  const float scale = rsqrtf(square / static_cast<float>(columns) + 1e-6F);
  for (std::int64_t i = threadIdx.x; i < columns; i += block) {
    store(to, i, (load(row, i) - mean) * scale);
  }
}

template <class T>
__global__ void row_sum_kernel(const T* in, float* out, std::int64_t columns) {
  const T* row = in + blockIdx.x * columns;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += block) sum += load(row, i);
  sum = block_reduce(sum, false);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
__global__ void cross_entropy_kernel(const T* logits, const std::int64_t* labels, float* loss,
                                     std::int64_t columns) {
  const T* row = logits + blockIdx.x * columns;
  float top = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < columns; i += block) top = fmaxf(top, load(row, i));
  top = block_reduce(top, true);
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += block) sum += expf(load(row, i) - top);
  sum = block_reduce(sum, false);
  if (threadIdx.x == 0) loss[blockIdx.x] = logf(sum) + top - load(row, labels[blockIdx.x]);
}

template <class T>
__global__ void gather_kernel(const T* table, const std::int64_t* index, T* out,
                              std::int64_t width) {
  const T* row = table + index[blockIdx.x] * width;
  for (std::int64_t i = threadIdx.x; i < width; i += block) out[blockIdx.x * width + i] = row[i];
}

__global__ void adamw_kernel(float* parameter, const float* gradient, float* mean, float* square,
                             std::int64_t count, AdamW s, float correct1, float correct2) {
  for (std::int64_t i = first(); i < count; i += stride()) {
    const float g = gradient[i];
    const float m = s.beta1 * mean[i] + (1 - s.beta1) * g;
    const float v = s.beta2 * square[i] + (1 - s.beta2) * g * g;
    mean[i] = m;
    square[i] = v;
    const float step = (m / correct1) / (sqrtf(v / correct2) + s.epsilon);
    parameter[i] = parameter[i] * (1 - s.rate * s.decay) - s.rate * step;
  }
}

constexpr int queries = block / warp;
constexpr int keys = warp;
constexpr int widest = 256;

/// A block takes `queries` queries of one head, a warp each, and goes through the keys in tiles of
/// `keys`, one key a lane, with a running maximum (Milakov & Gimelshein 2018).
template <class T>
__global__ void attention_kernel(const T* q, const T* k, const T* v, T* out, std::int64_t tokens,
                                 int width, bool causal) {
  extern __shared__ float shared[];
  float* tile = shared;  // keys x (width + 1), keys then values
  float* mine = tile + keys * (width + 1) + (threadIdx.x / warp) * width;  // this warp's query
  const int lane = threadIdx.x % warp;
  const std::int64_t query = static_cast<std::int64_t>(blockIdx.x) * queries + threadIdx.x / warp;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * tokens * width;
  const bool active = query < tokens;
  const float scale = rsqrtf(static_cast<float>(width));
  for (int i = lane; i < width; i += warp) {
    mine[i] = active ? load(q, head + query * width + i) * scale : 0;
  }
  float result[widest / warp] = {};
  float top = -INFINITY, sum = 0;
  const std::int64_t last = static_cast<std::int64_t>(blockIdx.x + 1) * queries;
  const std::int64_t end = causal && last < tokens ? last : tokens;
  for (std::int64_t from = 0; from < end; from += keys) {
    const auto fetch = [&](const T* source) {
      __syncthreads();
      for (int i = threadIdx.x; i < keys * width; i += block) {
        const std::int64_t key = from + i / width;
        tile[(i / width) * (width + 1) + i % width] =
            key < tokens ? load(source, head + key * width + i % width) : 0;
      }
      __syncthreads();
    };
    fetch(k);
    float score = 0;
    for (int i = 0; i < width; ++i) score += mine[i] * tile[lane * (width + 1) + i];
    const std::int64_t key = from + lane;
    if (key >= tokens || (causal && key > query)) score = -INFINITY;
    const float higher = fmaxf(top, warp_max(score));
    const float weight = higher == -INFINITY ? 0 : expf(score - higher);
    const float shrink = higher == -INFINITY ? 1 : expf(top - higher);
    sum = sum * shrink + warp_sum(weight);
    top = higher;
    fetch(v);
    for (int j = 0; j < width / warp; ++j) {
      float x = result[j] * shrink;
      for (int key_of_tile = 0; key_of_tile < keys; ++key_of_tile) {
        x += __shfl_sync(0xffffffffU, weight, key_of_tile) *
             tile[key_of_tile * (width + 1) + j * warp + lane];
      }
      result[j] = x;
    }
  }
  if (!active) return;
  for (int j = 0; j < width / warp; ++j) {
    store(out, head + query * width + j * warp + lane, result[j] / sum);
  }
}

unsigned grid_for(std::int64_t count) {
  constexpr std::int64_t most = 132 * 32;  // several waves on any card; the loops stride
  return static_cast<unsigned>(std::clamp<std::int64_t>((count + block - 1) / block, 1, most));
}

unsigned rows_of(std::int64_t rows) { return static_cast<unsigned>(rows); }

/// Calls `launch` with null pointers of the element's type, for their type alone.
template <class Launch>
void for_element(Element element, Launch launch) {
  if (element == Element::f32) {
    launch(static_cast<float*>(nullptr));
  } else if (element == Element::bf16) {
    launch(static_cast<__nv_bfloat16*>(nullptr));
  } else {
    launch(static_cast<__half*>(nullptr));
  }
  CUDA(cudaGetLastError());
}

template <class T>
const T* in(const void* p, const T*) {
  return static_cast<const T*>(p);
}
template <class T>
T* to(void* p, const T*) {
  return static_cast<T*>(p);
}

}  // namespace

std::int64_t element_bytes(Element element) { return element == Element::f32 ? 4 : 2; }

void fill(void* p, std::int64_t count, Element element, std::uint32_t seed, cudaStream_t stream) {
  for_element(element, [&](auto* t) {
    fill_kernel<<<grid_for(count), block, 0, stream>>>(to(p, t), count, seed);
  });
}

void read(const void* from, std::int64_t bytes, float* sink, cudaStream_t stream) {
  read_kernel<<<grid_for(bytes / 16), block, 0, stream>>>(static_cast<const uint4*>(from),
                                                          bytes / 16, sink);
  CUDA(cudaGetLastError());
}

void write(void* p, std::int64_t bytes, cudaStream_t stream) {
  write_kernel<<<grid_for(bytes / 16), block, 0, stream>>>(static_cast<uint4*>(p), bytes / 16);
  CUDA(cudaGetLastError());
}

void touch(void* buffer, std::int64_t bytes, std::int64_t moved, cudaStream_t stream) {
  const std::int64_t count = bytes / 16;
  const std::int64_t steps = std::max<std::int64_t>(moved / 32, 1);
  if (count == 0) return nothing(stream);
  touch_kernel<<<grid_for(steps), block, 0, stream>>>(static_cast<uint4*>(buffer), count, steps);
  CUDA(cudaGetLastError());
}

void spin(std::int64_t cycles, cudaStream_t stream) {
  spin_kernel<<<1, 1, 0, stream>>>(cycles);
  CUDA(cudaGetLastError());
}

void nothing(cudaStream_t stream) {
  empty_kernel<<<1, 1, 0, stream>>>();
  CUDA(cudaGetLastError());
}

void softmax(const void* x, void* out, std::int64_t rows, std::int64_t columns, Element element,
             cudaStream_t stream) {
  for_element(element, [&](auto* t) {
    softmax_kernel<<<rows_of(rows), block, 0, stream>>>(in(x, t), to(out, t), columns);
  });
}

void norm(const void* x, void* out, std::int64_t rows, std::int64_t columns, bool centred,
          Element element, cudaStream_t stream) {
  for_element(element, [&](auto* t) {
    norm_kernel<<<rows_of(rows), block, 0, stream>>>(in(x, t), to(out, t), columns, centred);
  });
}

void row_sum(const void* x, float* out, std::int64_t rows, std::int64_t columns, Element element,
             cudaStream_t stream) {
  for_element(element, [&](auto* t) {
    row_sum_kernel<<<rows_of(rows), block, 0, stream>>>(in(x, t), out, columns);
  });
}

void cross_entropy(const void* logits, const std::int64_t* labels, float* loss, std::int64_t rows,
                   std::int64_t columns, Element element, cudaStream_t stream) {
  for_element(element, [&](auto* t) {
    cross_entropy_kernel<<<rows_of(rows), block, 0, stream>>>(in(logits, t), labels, loss, columns);
  });
}

void gather(const void* table, const std::int64_t* index, void* out, std::int64_t rows,
            std::int64_t width, Element element, cudaStream_t stream) {
  for_element(element, [&](auto* t) {
    gather_kernel<<<rows_of(rows), block, 0, stream>>>(in(table, t), index, to(out, t), width);
  });
}

void adamw(float* parameter, const float* gradient, float* mean, float* square, std::int64_t count,
           const AdamW& s, cudaStream_t stream) {
  const auto steps = static_cast<float>(s.step);
  adamw_kernel<<<grid_for(count), block, 0, stream>>>(parameter, gradient, mean, square, count, s,
                                                      1 - powf(s.beta1, steps),
                                                      1 - powf(s.beta2, steps));
  CUDA(cudaGetLastError());
}

void attention(const void* q, const void* k, const void* v, void* out, std::int64_t heads,
               std::int64_t tokens, std::int64_t width, bool causal, Element element,
               cudaStream_t stream) {
  if (width % warp != 0 || width > widest) {
    throw CudaError(cudaErrorInvalidValue, "attention: width is no multiple of 32 up to 256");
  }
  const dim3 grid(static_cast<unsigned>((tokens + queries - 1) / queries),
                  static_cast<unsigned>(heads));
  const auto shared = static_cast<std::size_t>((keys * (width + 1) + queries * width) * 4);
  for_element(element, [&](auto* t) {
    attention_kernel<<<grid, block, shared, stream>>>(in(q, t), in(k, t), in(v, t), to(out, t),
                                                      tokens, static_cast<int>(width), causal);
  });
}

int load_all() {
  cudaFuncAttributes attributes;
  int loaded = 0;
  const auto load_one = [&](auto* kernel) {
    CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
    ++loaded;
  };
  const auto of_type = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    load_one(fill_kernel<T>);
    load_one(softmax_kernel<T>);
    load_one(norm_kernel<T>);
    load_one(row_sum_kernel<T>);
    load_one(cross_entropy_kernel<T>);
    load_one(gather_kernel<T>);
    load_one(attention_kernel<T>);
  };
  for (const Element element : {Element::f32, Element::bf16, Element::f16}) {
    for_element(element, of_type);
  }
  load_one(read_kernel);
  load_one(write_kernel);
  load_one(touch_kernel);
  load_one(spin_kernel);
  load_one(empty_kernel);
  load_one(adamw_kernel);
  return loaded;
}

}  // namespace shardfit::calibrate::kernels
