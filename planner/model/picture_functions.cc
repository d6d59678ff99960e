// The functions of the model language that are operators of pictures and signals.

#include <algorithm>

#include "model/code.h"
#include "model/machine.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace shardfit::model {
namespace {

namespace t = shardfit::tensor;
using t::Tensor;

const Tensor& first(Value* a) { return tensor_of(a[0], "the first argument"); }
std::int64_t number_or(const Value& v, const char* what, std::int64_t fallback) {
  return v.is_none() ? fallback : integer_of(v, what);
}

/// A weight of three dimensions is a signal's, one of four a picture's.
Value convolve(Machine&, Value* a) {
  t::Convolution c;
  c.stride = number_or(a[3], "the stride", 1);
  c.padding = number_or(a[4], "the padding", 0);
  c.groups = number_or(a[5], "the groups", 1);
  c.dilation = number_or(a[6], "the dilation", 1);
  const Tensor& weight = tensor_of(a[1], "a weight");
  if (weight.rank() == 3) return Value::of(t::conv1d(first(a), weight, a[2].tensor, c));
  return Value::of(t::conv2d(first(a), weight, a[2].tensor, c));
}

Value normalize_batch(Machine& m, Value* a) {
  const bool running = !a[3].is_none() && a[3].truth();
  return Value::of(t::batch_norm(first(a), tensor_of(a[1], "a weight"), tensor_of(a[2], "a bias"),
                                 m.training && !running));
}

t::Window window_of(Value* a) {
  t::Window w;
  w.size = integer_of(a[1], "the window");
  w.stride = number_or(a[2], "the stride", w.size);
  w.padding = number_or(a[3], "the padding", 0);
  w.ceiling = a[4].truth();
  return w;
}
Value max_pool(Machine&, Value* a) { return Value::of(t::max_pool2d(first(a), window_of(a))); }
Value avg_pool(Machine&, Value* a) { return Value::of(t::avg_pool2d(first(a), window_of(a))); }
Value adaptive_avg_pool(Machine&, Value* a) {
  return Value::of(t::adaptive_avg_pool2d(first(a), integer_of(a[1], "the size")));
}

Value normalize_groups(Machine&, Value* a) {
  return Value::of(
      t::group_norm(first(a), integer_of(a[1], "the groups"), a[2].tensor, a[3].tensor));
}
Value normalize_weight(Machine&, Value* a) {
  return Value::of(t::weight_norm(first(a), tensor_of(a[1], "the lengths"),
                                  static_cast<int>(integer_of(a[2], "a dimension"))));
}
Value upsample(Machine&, Value* a) {
  return Value::of(t::upsample_nearest2d(first(a), integer_of(a[1], "the factor")));
}
std::vector<std::int64_t> numbers_of(const Value& v, const char* what) {
  if (v.kind != ValueKind::list) throw std::runtime_error(std::string("expected ") + what);
  std::vector<std::int64_t> out;
  for (const Value& one : *v.list) out.push_back(integer_of(one, what));
  return out;
}
Value pad(Machine&, Value* a) { return Value::of(t::pad(first(a), numbers_of(a[1], "widths"))); }
/// torch.narrow: a view even where it is the whole.
Value narrow(Machine&, Value* a) {
  const std::int64_t dim = integer_of(a[1], "a dimension");
  const std::int64_t start = integer_of(a[2], "the start");
  const std::int64_t length = integer_of(a[3], "the length");
  const int rank = first(a).rank();
  if (dim < -rank || dim >= rank) throw std::runtime_error("no such dimension");
  const int d = static_cast<int>(dim);
  if (start < 0 || length < 0 || start > first(a).size(d) - length) {
    throw std::runtime_error("places " + std::to_string(start) + " to " +
                             std::to_string(start + length) + " of " +
                             std::to_string(first(a).size(d)));
  }
  return Value::of(t::slice(first(a), d, start, start + length));
}
Value roll(Machine&, Value* a) {
  std::vector<int> dims;
  for (const std::int64_t dim : numbers_of(a[1], "dimensions")) {
    if (dim < 0 || dim >= first(a).rank()) throw std::runtime_error("no such dimension");
    dims.push_back(static_cast<int>(dim));
  }
  return Value::of(t::roll(first(a), dims));
}
Value drop_in_place(Machine& m, Value* a) {
  if (m.training) t::dropout_in_place(first(a), a[1].as_real());
  return a[0];
}
Value unbind(Machine&, Value* a) {
  ValueList out;
  const std::int64_t dim = a[1].is_none() ? 0 : integer_of(a[1], "a dimension");
  for (Tensor& one : t::unbind(first(a), static_cast<int>(dim))) {
    out.push_back(Value::of(std::move(one)));
  }
  return Value::of_list(std::move(out));
}
std::vector<Tensor> tensors_of(const Value& v) {
  if (v.kind != ValueKind::list) throw std::runtime_error("expected a list of tensors");
  std::vector<Tensor> out;
  for (const Value& one : *v.list) out.push_back(tensor_of(one, "an element of the list"));
  return out;
}
Value stack(Machine&, Value* a) {
  return Value::of(t::stack(tensors_of(a[0]), static_cast<int>(number_or(a[1], "a dimension", 0))));
}
Value softplus(Machine&, Value* a) { return Value::of(t::softplus(first(a))); }
Value is_list(Machine&, Value* a) { return Value::of_bool(a[0].kind == ValueKind::list); }
/// list[start:end]; both may count from the end.
Value part(Machine&, Value* a) {
  if (a[0].kind != ValueKind::list) throw std::runtime_error("only a list has parts");
  const auto n = static_cast<std::int64_t>(a[0].list->size());
  const auto bound = [n](std::int64_t i) {
    return std::min(std::max<std::int64_t>(i < 0 ? i + n : i, 0), n);
  };
  const std::int64_t start = bound(number_or(a[1], "the start", 0));
  const std::int64_t end = std::max(start, bound(number_or(a[2], "the end", n)));
  return Value::of_list({a[0].list->begin() + start, a[0].list->begin() + end});
}
/// The letters of a text, one by one: layers that a file writes as a word.
Value letters(Machine& m, Value* a) {
  if (a[0].kind != ValueKind::text) throw std::runtime_error("only a text has letters");
  ValueList out;
  for (const char c : *a[0].text) {
    m.globals.texts.emplace_back(1, c);
    out.push_back(Value::of_text(&m.globals.texts.back()));
  }
  return Value::of_list(std::move(out));
}
Value lstm_cell(Machine&, Value* a) {
  std::pair<Tensor, Tensor> made = t::lstm_cell(
      first(a), tensor_of(a[1], "gates"), tensor_of(a[2], "a cell"), a[3].tensor, a[4].tensor);
  return Value::of_list({Value::of(std::move(made.first)), Value::of(std::move(made.second))});
}
Value embedding_bag(Machine&, Value* a) {
  return Value::of(
      t::embedding_bag(first(a), tensor_of(a[1], "indices"), tensor_of(a[2], "offsets")));
}
/// x[:, ..., i, j]: the index tensors stand for the dimensions from `first` on.
Value gather_at(Machine&, Value* a) {
  return Value::of(t::index(first(a), tensors_of(a[2]),
                            static_cast<int>(integer_of(a[1], "the first dimension"))));
}
Value bce_with_logits(Machine&, Value* a) {
  return Value::of(t::bce_with_logits(first(a), tensor_of(a[1], "the target")));
}
/// x.requires_grad = True of a tensor without a history.
Value track(Machine&, Value* a) {
  const Tensor& x = first(a);
  if (!x->grad_fn) x->leaf_requires_grad = true;
  return a[0];
}

/// A tensor that stays on the host: it counts and has no bytes here.
Value on_host(Machine& m, Value* a) {
  Tensor made = m.runtime.host_scalar(m.parameter_dtype);
  made->shape = sizes_of(a[0], "a shape");
  made->stride = t::contiguous_strides(made->shape);
  return Value::of(std::move(made));
}

/// x.contiguous(memory_format=torch.channels_last)
Value in_channels_last(Machine&, Value* a) { return Value::of(t::contiguous_in(first(a), true)); }

template <void (*function)(const Tensor&)>
Value in_place(Machine&, Value* a) {
  function(first(a));
  return a[0];
}

}  // namespace

const std::vector<BuiltinRow>& picture_table();
const std::vector<BuiltinRow>& picture_table() {
  static const std::vector<BuiltinRow> table = {
      {"convolve", {"x", "weight", "bias", "stride", "padding", "groups", "dilation"}, 2, convolve},
      {"normalize_batch", {"x", "weight", "bias", "running"}, 3, normalize_batch},
      {"max_pool", {"x", "size", "stride", "padding", "ceiling"}, 2, max_pool},
      {"avg_pool", {"x", "size", "stride", "padding", "ceiling"}, 2, avg_pool},
      {"adaptive_avg_pool", {"x", "size"}, 2, adaptive_avg_pool},
      {"normalize_groups", {"x", "groups", "weight", "bias"}, 2, normalize_groups},
      {"normalize_weight", {"v", "g", "dim"}, 3, normalize_weight},
      {"upsample", {"x", "factor"}, 2, upsample},
      {"pad", {"x", "widths"}, 2, pad},
      {"narrow", {"x", "dim", "start", "length"}, 4, narrow},
      {"roll", {"x", "dims"}, 2, roll},
      {"dropout_in_place", {"x", "p"}, 2, drop_in_place},
      {"unbind", {"x", "dim"}, 1, unbind},
      {"stack", {"tensors", "dim"}, 1, stack},
      {"lstm_cell",
       {"input_gates", "hidden_gates", "cell", "input_bias", "hidden_bias"},
       3,
       lstm_cell},
      {"part", {"list", "start", "end"}, 2, part},
      {"letters", {"text"}, 1, letters},
      {"softplus", {"x"}, 1, softplus},
      {"is_list", {"x"}, 1, is_list},
      {"embedding_bag", {"weight", "indices", "offsets"}, 3, embedding_bag},
      {"gather_at", {"x", "first", "indices"}, 3, gather_at},
      {"bce_with_logits", {"x", "target"}, 2, bce_with_logits},
      {"track", {"x"}, 1, track},
      {"on_host", {"shape"}, 1, on_host},
      {"in_channels_last", {"x"}, 1, in_channels_last},
      {"relu_in_place", {"x"}, 1, in_place<t::relu_in_place>},
      {"silu_in_place", {"x"}, 1, in_place<t::silu_in_place>},
  };
  return table;
}

}  // namespace shardfit::model
