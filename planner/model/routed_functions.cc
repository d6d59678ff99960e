// The functions of the model language that send rows to experts and back.

#include "model/code.h"
#include "model/machine.h"
#include "tensor/ops.h"
#include "tensor/routed.h"

namespace shardfit::model {
namespace {

namespace t = shardfit::tensor;
using t::Tensor;

const Tensor& first(Value* a) { return tensor_of(a[0], "the first argument"); }

Value masked_select(Machine&, Value* a) {
  return Value::of(t::masked_select(first(a), tensor_of(a[1], "the mask"),
                                    integer_of(a[2], "how many are true")));
}
Value index_select(Machine&, Value* a) {
  return Value::of(t::index_select(first(a), tensor_of(a[1], "the rows")));
}
Value scatter(Machine&, Value* a) {
  return Value::of(t::scatter(first(a), static_cast<int>(integer_of(a[1], "a dimension")),
                              tensor_of(a[2], "the indices"),
                              a[3].is_none() ? Tensor() : tensor_of(a[3], "the source")));
}
Value scatter_rows(Machine&, Value* a) {
  t::scatter_add_rows(first(a), tensor_of(a[1], "the rows"), tensor_of(a[2], "what is added"));
  return {};
}
Value weighted_swiglu(Machine&, Value* a) {
  return Value::of(t::weighted_swiglu(first(a), tensor_of(a[1], "the weights")));
}
/// Views of so many rows each: as many as the list is long, which may be more than a shape has
/// dimensions.
Value split_rows(Machine&, Value* a) {
  if (a[1].kind != ValueKind::list) throw std::runtime_error("split_rows needs a list of numbers");
  std::vector<std::int64_t> parts;
  for (const Value& n : *a[1].list) parts.push_back(integer_of(n, "the rows of a part"));
  ValueList out;
  for (Tensor& part : t::split(first(a), parts, 0)) out.push_back(Value::of(std::move(part)));
  return Value::of_list(std::move(out));
}

}  // namespace

const std::vector<BuiltinRow>& routed_table();
const std::vector<BuiltinRow>& routed_table() {
  static const std::vector<BuiltinRow> table = {
      {"masked_select", {"x", "mask", "count"}, 3, masked_select},
      {"index_select", {"x", "rows"}, 2, index_select},
      {"scatter", {"x", "dim", "indices", "source"}, 3, scatter},
      {"scatter_rows", {"x", "rows", "source"}, 3, scatter_rows},
      {"weighted_swiglu", {"x", "weights"}, 2, weighted_swiglu},
      {"split_rows", {"x", "rows"}, 2, split_rows},
  };
  return table;
}

}  // namespace shardfit::model
