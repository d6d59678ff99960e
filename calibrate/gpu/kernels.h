#pragma once
// Every kernel of the program, launched on a stream. Errors of a launch are thrown as CudaError.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardfit::calibrate::kernels {

enum class Element { f32, bf16, f16 };
std::int64_t element_bytes(Element element);

/// Numbers in (-1, 1), the same for the same seed and index (value_at), rounded to the element.
void fill(void* to, std::int64_t count, Element element, std::uint32_t seed, cudaStream_t stream);

/// Reads `bytes` (a multiple of 16) once.
void read(const void* from, std::int64_t bytes, float* sink, cudaStream_t stream);
/// Writes `bytes` (a multiple of 16) once.
void write(void* to, std::int64_t bytes, cudaStream_t stream);
/// Moves `moved` bytes, half read and half written, going round in the first `bytes` of a buffer.
void touch(void* buffer, std::int64_t bytes, std::int64_t moved, cudaStream_t stream);
/// Keeps one multiprocessor busy for so many clock cycles, so that what is queued behind starts
/// together.
void spin(std::int64_t cycles, cudaStream_t stream);
void nothing(cudaStream_t stream);

/// Each row's softmax, in fp32 inside.
void softmax(const void* in, void* out, std::int64_t rows, std::int64_t columns, Element element,
             cudaStream_t stream);
/// Each row over its root mean square (eps 1e-6); `centred`: of the row less its mean, as layer
/// norm does. No weights.
void norm(const void* in, void* out, std::int64_t rows, std::int64_t columns, bool centred,
          Element element, cudaStream_t stream);
/// Each row's sum, as fp32.
void row_sum(const void* in, float* out, std::int64_t rows, std::int64_t columns, Element element,
             cudaStream_t stream);
/// -log softmax(row)[label], as fp32.
void cross_entropy(const void* logits, const std::int64_t* labels, float* loss, std::int64_t rows,
                   std::int64_t columns, Element element, cudaStream_t stream);
/// out[row] = table[index[row]].
void gather(const void* table, const std::int64_t* index, void* out, std::int64_t rows,
            std::int64_t width, Element element, cudaStream_t stream);
/// One AdamW step in place (Loshchilov & Hutter 2019), bias corrected for `step` from 1.
struct AdamW {
  float rate = 1e-3F, beta1 = 0.9F, beta2 = 0.999F, epsilon = 1e-8F, decay = 0.01F;
  int step = 1;
};
void adamw(float* parameter, const float* gradient, float* mean, float* square, std::int64_t count,
           const AdamW& settings, cudaStream_t stream);
/// softmax(q k^T / sqrt(width)) v for `heads` heads of [tokens, width] each, contiguous; a query
/// sees keys up to its own place where `causal`. Width is a multiple of 32 up to 256. One warp a
/// query on fp32 units: right, and far slower than a fused kernel of a library.
void attention(const void* q, const void* k, const void* v, void* out, std::int64_t heads,
               std::int64_t tokens, std::int64_t width, bool causal, Element element,
               cudaStream_t stream);

/// Makes the runtime load every kernel; gives their number.
int load_all();

}  // namespace shardfit::calibrate::kernels
