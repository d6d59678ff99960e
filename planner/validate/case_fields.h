#pragma once
// Fields of a measured case, which may be absent.

#include <optional>
#include <string>

#include "spec/reader.h"
#include "tensor/dtype.h"

namespace shardfit::validate {

inline const spec::Node& at(const spec::Node& map, const char* key) {
  static const spec::Node none;
  const spec::Node* child = map.child(key);
  return child ? *child : none;
}
inline std::string text(const spec::Node& map, const char* key) { return at(map, key).text; }
inline bool truth(const spec::Node& map, const char* key) { return at(map, key).text == "true"; }
inline bool given(const spec::Node& map, const char* key) {
  return at(map, key).kind != spec::Kind::null;
}

inline std::int64_t whole(const spec::Node& map, const char* key, std::int64_t fallback,
                          Diagnostics& faults) {
  const spec::Node& node = at(map, key);
  if (node.kind == spec::Kind::null) return fallback;
  return spec::as_integer(node, key, {0}, faults).value_or(fallback);
}
inline double real(const spec::Node& map, const char* key, double fallback, Diagnostics& faults) {
  const spec::Node& node = at(map, key);
  if (node.kind == spec::Kind::null) return fallback;
  return spec::as_real(node, key, {}, faults).value_or(fallback);
}

inline std::optional<DType> dtype_named(const std::string& name) {
  for (DType d : {DType::bf16, DType::f16, DType::f32}) {
    if (name == dtype_name(d)) return d;
  }
  return std::nullopt;
}

}  // namespace shardfit::validate
