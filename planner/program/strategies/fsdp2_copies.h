#pragma once
// What the two copy kernels of fully_shard take from the device besides their operands: a table of
// addresses, sizes and thread blocks, sent there for each launch
// (pytorch aten/src/ATen/native/cuda/TensorShape.cu).

#include <cstdint>
#include <vector>

#include "tensor/runtime.h"

namespace shardfit::program::fsdp2 {

/// Bytes of the table of split_with_sizes_copy out of a buffer of `chunks` rows whose parts have
/// `bytes` a row (split_with_sizes_copy_out_cuda_contiguous_no_cast).
std::int64_t split_table_bytes(const std::vector<std::int64_t>& bytes, std::int64_t chunks,
                               const tensor::DeviceTraits& device);

/// Bytes of the table of _chunk_cat: `bytes` of each tensor's padded chunk in the output
/// (get_chunk_cat_metadata).
std::int64_t chunk_table_bytes(const std::vector<std::int64_t>& bytes);

/// Whether _chunk_cat has a kernel from one dtype into the other; else it pads and concatenates.
bool chunk_kernel(DType from, DType to);

}  // namespace shardfit::program::fsdp2
