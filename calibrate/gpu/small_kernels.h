#pragma once
// Kernels of `smoke` for what no timed kernel does: one thread a number of the result.

#include <cuda_runtime_api.h>

#include "calibrate/small/shape.h"
#include "tensor/dtype.h"

namespace shardfit::calibrate::kernels {

/// smoke_input() of one input, on the device; `reach` is small_reach().
void small_fill(void* to, std::int64_t count, DType dtype, std::uint32_t seed, std::int64_t reach,
                cudaStream_t stream);

/// An operator of small/operators.h: computed in fp64 for fp64, in integers where both dtypes are
/// such, else in fp32.
void small(const SmallShape& shape, const void* const (&inputs)[4], DType dtype, void* out,
           DType result, cudaStream_t stream);

/// Makes the runtime load them; gives their number.
int load_small();

}  // namespace shardfit::calibrate::kernels
