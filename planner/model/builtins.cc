// The functions of the model language that are operators of tensors.

#include <cmath>

#include "model/code.h"
#include "model/machine.h"
#include "model/routing.h"
#include "tensor/attention_kernels.h"
#include "tensor/autocast.h"
#include "tensor/iterator.h"
#include "tensor/ops.h"
#include "tensor/routed.h"

namespace shardfit::model {
namespace {

namespace t = shardfit::tensor;
using t::Tensor;

const Tensor& first(Value* a) { return tensor_of(a[0], "the first argument"); }
int dim(const Value& v) {
  const std::int64_t n = integer_of(v, "a dimension");
  if (n < -t::max_dims || n > t::max_dims) throw std::runtime_error("no such dimension");
  return static_cast<int>(n);
}
/// A dimension that the tensor has.
int dim_of(const Value& v, const Tensor& x) {
  const int d = dim(v);
  if (d < -x.rank() || d >= x.rank()) throw std::runtime_error("no such dimension");
  return d;
}
double real_of(const Value& v, const char* what) {
  if (v.is_number()) return v.as_real();
  throw std::runtime_error(std::string(what) + " must be a number, found " + kind_text(v.kind));
}
/// None is no dropout.
double dropout_rate(const Value& v) {
  const double rate = v.is_none() ? 0 : real_of(v, "the rate");
  if (rate >= 0 && rate <= 1) return rate;
  throw std::runtime_error("a dropout rate is from 0 to 1");  // torch/nn/functional.py, dropout
}
DType dtype_of(const Value& v) {
  if (v.kind != ValueKind::dtype) throw std::runtime_error("expected a dtype such as fp32");
  return v.dtype;
}

ValueList tensors(std::vector<Tensor> list) {
  ValueList out;
  for (Tensor& one : list) out.push_back(Value::of(std::move(one)));
  return out;
}

std::vector<Tensor> tensor_list(const Value& v) {
  if (v.kind != ValueKind::list) throw std::runtime_error("expected a list of tensors");
  std::vector<Tensor> out;
  for (const Value& one : *v.list) out.push_back(tensor_of(one, "an element of the list"));
  return out;
}

template <Tensor (*function)(const Tensor&)>
Value unary(Machine&, Value* a) {
  return Value::of(function(first(a)));
}

Value size(Machine&, Value* a) {
  const Tensor& x = first(a);
  const int d = dim(a[1]);
  if (d < -x.rank() || d >= x.rank()) throw std::runtime_error("no such dimension");
  return Value::of(x.size(d));
}
Value shape(Machine&, Value* a) {
  ValueList out;
  for (int i = 0; i < first(a).rank(); ++i) out.push_back(Value::of(first(a).size(i)));
  return Value::of_list(std::move(out));
}
Value view(Machine&, Value* a) { return Value::of(t::view(first(a), shape_of(a[1], "a shape"))); }
Value reshape(Machine&, Value* a) {
  return Value::of(t::reshape(first(a), shape_of(a[1], "a shape")));
}
Value transpose(Machine&, Value* a) {
  return Value::of(t::transpose(first(a), dim(a[1]), dim(a[2])));
}
Value permute(Machine&, Value* a) {
  const t::Shape order = shape_of(a[1], "an order");
  std::vector<int> dims;
  for (int i = 0; i < order.rank; ++i) dims.push_back(static_cast<int>(order[i]));
  return Value::of(t::permute(first(a), dims));
}
Value unsqueeze(Machine&, Value* a) { return Value::of(t::unsqueeze(first(a), dim(a[1]))); }
Value squeeze(Machine&, Value* a) { return Value::of(t::squeeze(first(a), dim(a[1]))); }
Value expand(Machine&, Value* a) {
  return Value::of(t::expand(first(a), shape_of(a[1], "a shape")));
}
Value slice(Machine&, Value* a) {
  const Tensor& x = first(a);
  const int d = dim_of(a[1], x);
  const std::int64_t start = a[2].is_none() ? 0 : integer_of(a[2], "start");
  const std::int64_t end = a[3].is_none() ? x.size(d) : integer_of(a[3], "end");
  const std::int64_t step = a[4].is_none() ? 1 : integer_of(a[4], "step");
  if (start == 0 && end == x.size(d) && step == 1) return Value::of(t::alias(x));
  return Value::of(t::slice(x, d, start, end, step));
}
Value select(Machine&, Value* a) {
  return Value::of(t::select(first(a), dim(a[1]), integer_of(a[2], "an index")));
}
Value split(Machine&, Value* a) {
  const Tensor& x = first(a);
  const t::Shape sizes = shape_of(a[1], "sizes");
  std::vector<std::int64_t> parts;
  for (int i = 0; i < sizes.rank; ++i) parts.push_back(sizes[i]);
  return Value::of_list(tensors(t::split(x, parts, a[2].is_none() ? 0 : dim(a[2]))));
}
Value chunk(Machine&, Value* a) {
  const Tensor& x = first(a);
  const std::int64_t n = integer_of(a[1], "the number of chunks");
  const int d = a[2].is_none() ? 0 : dim_of(a[2], x);
  if (n < 1) throw std::runtime_error("at least one chunk");
  const std::int64_t each = (x.size(d) + n - 1) / n;
  std::vector<std::int64_t> parts;
  for (std::int64_t left = x.size(d); left > 0; left -= each) parts.push_back(std::min(each, left));
  return Value::of_list(tensors(t::split(x, parts, d)));
}
Value cat(Machine&, Value* a) { return Value::of(t::cat(tensor_list(a[0]), dim(a[1]))); }
Value to(Machine&, Value* a) { return Value::of(t::to(first(a), dtype_of(a[1]))); }
Value to_float(Machine&, Value* a) { return Value::of(t::to(first(a), DType::f32)); }
Value dtype(Machine&, Value* a) { return Value::of_dtype(first(a).dtype()); }
Value clone(Machine&, Value* a) { return Value::of(t::clone(first(a), true)); }
Value pow(Machine&, Value* a) {
  if (a[1].kind == ValueKind::tensor) return Value::of(t::pow_tensor(first(a), a[1].tensor));
  return Value::of(t::pow_scalar(first(a), real_of(a[1], "the exponent")));
}
Value add_in_place(Machine&, Value* a) {
  t::add_in_place(first(a), tensor_of(a[1], "the second tensor"));
  return a[0];
}
Value scale_in_place(Machine&, Value* a) {
  t::div_in_place(first(a));
  return a[0];
}
Value tile(Machine&, Value* a) {
  return Value::of(t::tile(first(a), integer_of(a[1], "the number of copies")));
}
Value pick(Machine&, Value* a) { return Value::of(t::pick(first(a), dim(a[1]))); }
Value baddbmm(Machine&, Value* a) {
  return Value::of(t::baddbmm(first(a), tensor_of(a[1], "a matrix"), tensor_of(a[2], "a matrix")));
}
/// The largest power of two that is not above a number.
Value power_of_two(Machine&, Value* a) {
  std::int64_t power = 1;
  while (power * 2 <= integer_of(a[0], "a number")) power *= 2;
  return Value::of(power);
}
Value mean(Machine&, Value* a) {
  const bool keep = a[2].is_none() || a[2].truth();
  if (a[1].is_none()) return Value::of(t::mean_all(first(a)));
  if (a[1].kind != ValueKind::list) return Value::of(t::mean(first(a), dim(a[1]), keep));
  std::uint32_t dims = 0;
  for (const Value& one : *a[1].list) {
    const int d = dim_of(one, first(a));
    const std::uint32_t bit = 1U << (d < 0 ? d + first(a).rank() : d);
    if (dims & bit) throw std::runtime_error("a dimension is named twice");
    dims |= bit;
  }
  return Value::of(t::mean_dims(first(a), dims, keep));
}
Value sum(Machine&, Value* a) {
  if (a[1].is_none()) return Value::of(t::sum_all(first(a)));
  const int d = dim_of(a[1], first(a));
  const int i = d < 0 ? d + first(a).rank() : d;
  return Value::of(t::sum_dims(first(a), 1U << i, !a[2].is_none() && a[2].truth()));
}
Value norm(Machine&, Value* a) {
  return Value::of(t::norm(first(a), dim(a[1]), !a[2].is_none() && a[2].truth()));
}
Value softmax(Machine&, Value* a) {
  const DType result = a[2].is_none() ? t::full_dtype(first(a), first(a).dtype()) : dtype_of(a[2]);
  return Value::of(t::softmax(first(a), dim(a[1]), result));
}
Value dropout(Machine& m, Value* a) {
  const double rate = dropout_rate(a[1]);
  return Value::of(m.training ? t::dropout(first(a), rate) : first(a));
}
Value layer_norm(Machine&, Value* a) {
  return Value::of(t::layer_norm(first(a), a[1].tensor, a[2].tensor));
}
Value rms_norm(Machine&, Value* a) {
  return Value::of(t::rms_norm(first(a), tensor_of(a[1], "a weight")));
}
/// Python's `is`, of two tensors.
Value same(Machine&, Value* a) { return Value::of_bool(first(a) == tensor_of(a[1], "b")); }
Value linear(Machine&, Value* a) {
  return Value::of(t::linear(first(a), tensor_of(a[1], "a weight"), a[2].tensor));
}
Value addmm(Machine&, Value* a) {
  return Value::of(t::addmm(first(a), tensor_of(a[1], "a matrix"), tensor_of(a[2], "a matrix")));
}
Value matmul(Machine&, Value* a) {
  return Value::of(t::matmul(first(a), tensor_of(a[1], "the second matrix")));
}
Value bmm(Machine&, Value* a) {
  return Value::of(t::bmm(first(a), tensor_of(a[1], "the second matrix")));
}
Value embedding(Machine&, Value* a) {
  return Value::of(t::embedding(first(a), tensor_of(a[1], "indices")));
}
Value cross_entropy(Machine&, Value* a) {
  return Value::of(t::cross_entropy(first(a), tensor_of(a[1], "the target")));
}
Value mse_loss(Machine&, Value* a) {
  return Value::of(t::mse_loss(first(a), tensor_of(a[1], "the target")));
}
Value invert(Machine&, Value* a) { return Value::of(t::compare_scalar("invert", first(a))); }
Value where(Machine&, Value* a) { return Value::of(t::where(first(a), a[1].tensor, a[2].tensor)); }
Value masked_fill(Machine&, Value* a) {
  return Value::of(t::masked_fill(first(a), tensor_of(a[1], "a mask")));
}
Value tril(Machine&, Value* a) { return Value::of(t::compare_scalar("tril", first(a))); }
Value masked_fill_in_place(Machine&, Value* a) {
  return Value::of(t::masked_fill_in_place(first(a), tensor_of(a[1], "the mask")));
}
Value bias_gelu(Machine&, Value* a) {
  return Value::of(t::bias_gelu(first(a), tensor_of(a[1], "the bias")));
}
Value logical_and(Machine&, Value* a) {
  return Value::of(t::compare("and", first(a), tensor_of(a[1], "the second tensor")));
}
/// x[indices]: one index tensor a leading dimension, broadcast against each other.
Value gather(Machine&, Value* a) { return Value::of(t::index(first(a), tensor_list(a[1]))); }
Value gather_along(Machine&, Value* a) {
  return Value::of(t::gather_along(first(a), dim(a[1]), tensor_of(a[2], "the indices")));
}
Value copy_into(Machine&, Value* a) {
  return Value::of(t::copy_into(first(a), dim(a[1]), integer_of(a[2], "the start"),
                                tensor_of(a[3], "the source")));
}
Value complex_mul(Machine&, Value* a) {
  return Value::of(t::complex_mul(first(a), tensor_of(a[1], "the second factor")));
}
Value attention(Machine& m, Value* a) {
  t::AttentionArguments args;
  args.query = first(a);
  args.key = tensor_of(a[1], "the key");
  args.value = tensor_of(a[2], "the value");
  args.mask = a[3].tensor;
  args.causal = a[4].truth();
  args.grouped = a[5].truth();
  args.dropout = m.training ? dropout_rate(a[6]) : 0;
  return Value::of(t::attention(args));
}
Value math_attention(Machine&, Value* a) {
  t::AttentionArguments args;
  args.query = first(a);
  args.key = tensor_of(a[1], "the key");
  args.value = tensor_of(a[2], "the value");
  args.causal = true;
  args.grouped = args.query.size(1) != args.key.size(1);
  return Value::of(t::math_attention(args));
}
Value empty(Machine& m, Value* a) {
  const t::Scoped<const char*> label(m.runtime.label.kind, "empty");
  Tensor made = m.runtime.empty(sizes_of(a[0], "a shape"),
                                a[1].is_none() ? m.parameter_dtype : dtype_of(a[1]));
  // Whatever fills it writes it once.
  m.runtime.launched("fill", made.dtype(),
                     static_cast<double>(made.count() * element_size(made.dtype())));
  return Value::of(std::move(made));
}
Value scratch(Machine& m, Value* a) {
  const t::Scoped<const char*> label(m.runtime.label.kind, "scratch");
  const std::int64_t bytes = integer_of(a[0], "bytes");
  if (bytes < 0) throw std::runtime_error("scratch of " + std::to_string(bytes) + " bytes");
  m.runtime.scratch(bytes);
  return {};
}
Value scalar(Machine& m, Value* a) {
  return Value::of(m.runtime.host_scalar(a[0].is_none() ? DType::f32 : dtype_of(a[0])));
}
Value cumsum(Machine&, Value* a) {
  const Tensor& x = first(a);
  const DType sum = is_floating(x.dtype()) ? x.dtype() : DType::i64;
  return Value::of(t::cumsum(x, a[1].is_none() ? sum : dtype_of(a[1])));
}
Value pair_of(std::pair<Tensor, Tensor> pair) {
  return Value::of_list({Value::of(std::move(pair.first)), Value::of(std::move(pair.second))});
}
Value topk(Machine&, Value* a) { return pair_of(t::topk(first(a), integer_of(a[1], "a count"))); }
Value sort(Machine&, Value* a) { return pair_of(t::sort(first(a))); }
Value divide_in_place(Machine&, Value* a) {
  return Value::of(t::div_in_place(first(a), tensor_of(a[1], "the divisor")));
}
Value grouped_mm(Machine&, Value* a) {
  return Value::of(
      t::grouped_mm(first(a), tensor_of(a[1], "the weights"), tensor_of(a[2], "the offsets")));
}
/// One byte for each outermost row, then one (ReduceLogicKernel.cu).
Value all(Machine& m, Value* a) {
  const t::Scoped<const char*> label(m.runtime.label.kind, "all");
  const Tensor& x = tensor_of(a[0], "the argument");
  Tensor out = m.runtime.empty({}, DType::boolean);
  if (m.runtime.watched()) m.runtime.ran("all", {x}, {out});
  return Value::of(std::move(out));
}
Value least(Machine&, Value* a) {
  return Value::of(t::minimum(first(a), tensor_of(a[1], "the second tensor")));
}
Value detach(Machine&, Value* a) { return Value::of(t::detach(first(a))); }
Value requires_grad(Machine&, Value* a) { return Value::of_bool(first(a).requires_grad()); }
Value integer(Machine&, Value* a) {
  const double value = real_of(a[0], "the number");
  if (!(std::abs(value) < 9e18)) throw std::runtime_error("no whole number below 2^63");
  return a[0].kind == ValueKind::integer ? a[0] : Value::of(static_cast<std::int64_t>(value));
}
Value length(Machine&, Value* a) {
  if (a[0].kind != ValueKind::list) throw std::runtime_error("only a list has a length");
  return Value::of(static_cast<std::int64_t>(a[0].list->size()));
}
Value range(Machine&, Value* a) {
  constexpr std::int64_t most = 1'000'000;
  const std::int64_t count = integer_of(a[0], "a count");
  if (count > most) throw std::runtime_error("a range of more than a million");
  ValueList out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(Value::of(i));
  return Value::of_list(std::move(out));
}
Value add_rows(Machine&, Value* a) {
  t::index_add_in_place(first(a), tensor_of(a[1], "the rows"), tensor_of(a[2], "what is added"));
  return {};
}

/// Rows that each of `count` experts gets when `tokens` choose `chosen` experts each: as equally as
/// can be, the worst way (the first take all but one row for each of the others, so that every
/// expert runs and some are as large as can be), or by shares; a token chooses an expert once.
Value expert_rows(Machine&, Value* a) {
  const std::int64_t tokens = integer_of(a[0], "the tokens");
  const std::int64_t chosen = integer_of(a[1], "the experts of a token");
  const auto count = static_cast<std::size_t>(integer_of(a[2], "the experts"));
  std::vector<double> shares(count, 1.0);
  if (*a[3].text == "shares") {
    if (a[4].list->size() != count) {
      throw std::runtime_error("the routing gives shares of " + std::to_string(a[4].list->size()) +
                               " experts, the model has " + std::to_string(count));
    }
    for (std::size_t i = 0; i < count; ++i) shares[i] = (*a[4].list)[i].as_real();
  }
  ValueList rows;
  const std::vector<std::int64_t> dealt = *a[3].text == "worst"
                                              ? worst_rows(tokens, chosen, count)
                                              : dealt_rows(tokens, chosen, shares);
  for (const std::int64_t n : dealt) rows.push_back(Value::of(n));
  return Value::of_list(std::move(rows));
}
Value minimum(Machine&, Value* a) {
  return real_of(a[0], "the first") <= real_of(a[1], "the second") ? a[0] : a[1];
}
Value maximum(Machine&, Value* a) {
  return real_of(a[0], "the first") >= real_of(a[1], "the second") ? a[0] : a[1];
}
Value repeat(Machine&, Value*) {
  throw std::runtime_error("repeat(n, module) makes children only");
}
/// Ends the program with a fault: what is wrong, and the text it is about.
Value refuse(Machine&, Value* a) {
  std::string message = a[0].kind == ValueKind::text ? *a[0].text : "refused";
  if (a[1].kind == ValueKind::text) message += ": '" + *a[1].text + "'";
  throw std::runtime_error(message);
}
Value is_contiguous(Machine&, Value* a) { return Value::of_bool(first(a).contiguous()); }

}  // namespace

const std::vector<BuiltinRow>& host_table();     // host_functions.cc
const std::vector<BuiltinRow>& picture_table();  // picture_functions.cc
const std::vector<BuiltinRow>& routed_table();   // routed_functions.cc

const std::vector<BuiltinRow>& builtin_table() {
  static const std::vector<BuiltinRow> table = [] {
    std::vector<BuiltinRow> rows = {
        {"size", {"x", "dim"}, 2, size},
        {"shape", {"x"}, 1, shape},
        {"view", {"x", "shape"}, 2, view},
        {"reshape", {"x", "shape"}, 2, reshape},
        {"transpose", {"x", "dim0", "dim1"}, 3, transpose},
        {"permute", {"x", "order"}, 2, permute},
        {"unsqueeze", {"x", "dim"}, 2, unsqueeze},
        {"squeeze", {"x", "dim"}, 2, squeeze},
        {"expand", {"x", "shape"}, 2, expand},
        {"slice", {"x", "dim", "start", "end", "step"}, 2, slice},
        {"select", {"x", "dim", "index"}, 3, select},
        {"split", {"x", "sizes", "dim"}, 2, split},
        {"chunk", {"x", "count", "dim"}, 2, chunk},
        {"cat", {"tensors", "dim"}, 2, cat},
        {"contiguous", {"x"}, 1, unary<t::contiguous>},
        {"to", {"x", "dtype"}, 2, to},
        {"float", {"x"}, 1, to_float},
        {"dtype", {"x"}, 1, dtype},
        {"clone", {"x"}, 1, clone},
        {"detach", {"x"}, 1, detach},
        {"pow", {"x", "exponent"}, 2, pow},
        {"rsqrt", {"x"}, 1, unary<t::rsqrt>},
        {"sqrt", {"x"}, 1, unary<t::sqrt>},
        {"exp", {"x"}, 1, unary<t::exp>},
        {"log", {"x"}, 1, unary<t::log>},
        {"abs", {"x"}, 1, unary<t::abs>},
        {"minimum", {"a", "b"}, 2, least},
        {"zeros_like", {"x"}, 1, unary<t::zeros_like>},
        {"tanh", {"x"}, 1, unary<t::tanh>},
        {"sigmoid", {"x"}, 1, unary<t::sigmoid>},
        {"relu", {"x"}, 1, unary<t::relu>},
        {"silu", {"x"}, 1, unary<t::silu>},
        {"gelu", {"x"}, 1, unary<t::gelu>},
        {"cos", {"x"}, 1, unary<t::cos>},
        {"sin", {"x"}, 1, unary<t::sin>},
        {"mean", {"x", "dim", "keep"}, 1, mean},
        {"sum", {"x", "dim", "keep"}, 1, sum},
        {"norm", {"x", "dim", "keep"}, 2, norm},
        {"softmax", {"x", "dim", "dtype"}, 2, softmax},
        {"dropout", {"x", "p"}, 2, dropout},
        {"normalize", {"x", "weight", "bias"}, 1, layer_norm},
        {"fused_rms_norm", {"x", "weight"}, 2, rms_norm},
        {"affine", {"x", "weight", "bias"}, 2, linear},
        {"addmm", {"bias", "a", "b"}, 3, addmm},
        {"matmul", {"a", "b"}, 2, matmul},
        {"bmm", {"a", "b"}, 2, bmm},
        {"lookup", {"weight", "indices"}, 2, embedding},
        {"cross_entropy", {"logits", "target"}, 2, cross_entropy},
        {"mse_loss", {"x", "target"}, 2, mse_loss},
        {"invert", {"x"}, 1, invert},
        {"where", {"condition", "a", "b"}, 2, where},
        {"masked_fill", {"x", "mask"}, 2, masked_fill},
        {"add_in_place", {"a", "b"}, 2, add_in_place},
        {"scale_in_place", {"a"}, 1, scale_in_place},
        {"tile", {"x", "times"}, 2, tile},
        {"pick", {"x", "dim"}, 2, pick},
        {"baddbmm", {"start", "a", "b"}, 3, baddbmm},
        {"bloom_gelu", {"x"}, 1, unary<t::bloom_gelu>},
        {"power_of_two", {"number"}, 1, power_of_two},
        {"tril", {"x"}, 1, tril},
        {"clamp", {"x"}, 1, unary<t::clamp>},
        {"masked_fill_in_place", {"x", "mask"}, 2, masked_fill_in_place},
        {"swiglu", {"x"}, 1, unary<t::swiglu>},
        {"bias_gelu", {"x", "bias"}, 2, bias_gelu},
        {"viewless", {"x"}, 1, unary<t::viewless>},
        {"logical_and", {"a", "b"}, 2, logical_and},
        {"gather", {"x", "indices"}, 2, gather},
        {"gather_along", {"x", "dim", "indices"}, 3, gather_along},
        {"copy_into", {"x", "dim", "start", "source"}, 4, copy_into},
        {"complex_mul", {"a", "b"}, 2, complex_mul},
        {"as_real", {"x"}, 1, unary<t::as_real>},
        {"attention",
         {"query", "key", "value", "mask", "causal", "grouped", "dropout"},
         3,
         attention},
        {"causal_math_attention", {"query", "key", "value"}, 3, math_attention},
        {"empty", {"shape", "dtype"}, 1, empty},
        {"scratch", {"bytes"}, 1, scratch},
        {"scalar", {"dtype"}, 0, scalar},
        {"cumsum", {"x", "dtype"}, 1, cumsum},
        {"topk", {"x", "count"}, 2, topk},
        {"sort", {"x"}, 1, sort},
        {"divide_in_place", {"x", "divisor"}, 2, divide_in_place},
        {"grouped_mm", {"x", "weight", "offsets"}, 3, grouped_mm},
        {"all", {"x"}, 1, all},
        {"same", {"a", "b"}, 2, same},
        {"requires_grad", {"x"}, 1, requires_grad},
        {"is_contiguous", {"x"}, 1, is_contiguous},
        {"int", {"number"}, 1, integer},
        {"length", {"list"}, 1, length},
        {"range", {"count"}, 1, range},
        {"add_rows", {"x", "rows", "source"}, 3, add_rows},
        {"expert_rows", {"tokens", "chosen", "count", "routing", "shares"}, 5, expert_rows},
        {"min", {"a", "b"}, 2, minimum},
        {"max", {"a", "b"}, 2, maximum},
        {"refuse", {"message", "name"}, 1, refuse},
        {"repeat", {"count", "module"}, 2, repeat},
    };
    rows.insert(rows.end(), picture_table().begin(), picture_table().end());
    rows.insert(rows.end(), routed_table().begin(), routed_table().end());
    rows.insert(rows.end(), host_table().begin(), host_table().end());
    return rows;
  }();
  return table;
}

}  // namespace shardfit::model
