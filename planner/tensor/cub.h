#pragma once
// Scratch space of the CUB algorithms that PyTorch calls (NVIDIA/cccl, cub/device). Each lays its
// buffers one behind another, every one on a boundary of 256 bytes, and asks for 255 more.

#include <cstdint>

#include "tensor/runtime.h"

namespace shardfit::tensor {

/// DeviceRadixSort::SortPairs of `items` keys and values of eight bytes, over the low `bits` of the
/// keys (dispatch_radix_sort.cuh, InvokeOnesweep and InvokeSingleTile).
std::int64_t radix_sort_scratch(const DeviceTraits& device, std::int64_t items, int bits);
/// DeviceSelect::UniqueByKey (dispatch_unique_by_key.cuh).
std::int64_t unique_by_key_scratch(const DeviceTraits& device, std::int64_t items);
/// DeviceScan over elements of `element` bytes (dispatch_scan.cuh).
std::int64_t scan_scratch(std::int64_t items, std::int64_t element);
/// DeviceReduce::Sum to elements of `element` bytes: one block where a tile holds them all
/// (dispatch_reduce.cuh).
std::int64_t reduce_sum_scratch(const DeviceTraits& device, std::int64_t items,
                                std::int64_t element);
/// DeviceSelect::Flagged (dispatch_select_if.cuh).
std::int64_t select_flagged_scratch(std::int64_t items);

}  // namespace shardfit::tensor
