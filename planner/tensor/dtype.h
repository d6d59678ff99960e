#pragma once
// Element types of tensors on the device.

#include <cstdint>

namespace shardfit {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, i16, i8, u8, boolean };

/// Bytes of one element.
constexpr std::int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    default:
      return 1;
  }
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::f16; }
constexpr bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* names[] = {"fp64",  "fp32",  "bf16", "fp16",  "int64",
                                   "int32", "int16", "int8", "uint8", "bool"};
  return names[static_cast<int>(dtype)];
}

/// The common type of two tensors with dimensions, as PyTorch promotes them
/// (pytorch c10/core/ScalarType.cpp, promoteTypes).
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (a == DType::f64 || b == DType::f64) return DType::f64;
    return DType::f32;  // fp32 with a half type, or bf16 with fp16
  }
  if (a == DType::boolean) return b;
  if (b == DType::boolean) return a;
  return a < b ? a : b;  // wider integers are listed first; int8 with uint8 does not occur here
}

}  // namespace shardfit
