// Which kernel stands for which operator kind of the planner.
#include <algorithm>
#include <iterator>

#include "calibrate/smoke.h"

namespace shardfit::calibrate {
namespace {

struct Row {
  const char* kind;
  Small small;
  SmokeTest forward = SmokeTest::small;  // by what the operator itself is done
};
using enum SmokeTest;
constexpr Row table[] = {
    {"softmax", Small::softmax, rows},
    {"log_softmax", Small::log_softmax},
    {"nll_loss", Small::nll_loss},
    {"mse_loss", Small::mse_loss},
    {"bce_with_logits", Small::bce_loss},
    {"rms_norm", Small::rms_norm, rows},
    {"layer_norm", Small::layer_norm, rows},
    {"batch_norm", Small::layer_norm, rows},  // a channel's values as a row
    {"group_norm", Small::layer_norm, rows},  // a group's
    {"weight_norm", Small::weight_norm},
    {"sum", Small::sum, rows},
    {"mean", Small::mean},
    {"norm", Small::norm},
    {"foreach_norm", Small::norm},
    {"all", Small::all},
    {"cumsum", Small::cumsum},
    {"sort", Small::sort},
    {"topk", Small::topk},
    {"lstm_cell", Small::lstm_cell},
    {"embedding", Small::embedding, rows},
    {"index", Small::embedding, rows},
    {"embedding_bag", Small::embedding_bag},
    {"gather", Small::gather},
    {"max_pool", Small::max_pool},
    {"avg_pool", Small::avg_pool},
    {"adaptive_avg_pool", Small::adaptive_avg_pool},
    {"upsample", Small::upsample},
    {"pad", Small::pad},
    {"roll", Small::roll},
    {"tile", Small::tile},
    {"cat", Small::cat},
    {"stack", Small::stack},
    {"chunk_cat", Small::chunk_cat},
    {"split_with_sizes_copy", Small::split},
    {"fused_adamw", Small::adamw, SmokeTest::adamw},
    {"adamw", Small::adamw, SmokeTest::adamw},
    {"dropout", Small::dropout},
    {"to", Small::copy},
    {"clone", Small::copy},
    {"copy", Small::copy},
    {"foreach_copy", Small::copy},
    {"slice", Small::copy},
    {"accumulate_grad", Small::copy},
    {"fill", Small::fill},
    {"zeros_like", Small::zeros},
    {"add", Small::add},
    {"accumulate_gradients", Small::add},
    {"foreach_add", Small::add},
    {"sub", Small::sub},
    {"mul", Small::mul},
    {"foreach_mul", Small::mul},
    {"div", Small::div},
    {"foreach_div", Small::div},
    {"floor_divide", Small::floor_divide},
    {"foreach_lerp", Small::lerp},
    {"foreach_addcmul", Small::addcmul},
    {"foreach_addcdiv", Small::addcdiv},
    {"minimum", Small::minimum},
    {"neg", Small::neg},
    {"abs", Small::abs},
    {"sgn", Small::sgn},
    {"sin", Small::sin},
    {"cos", Small::cos},
    {"tanh", Small::tanh},
    {"sqrt", Small::sqrt},
    {"foreach_sqrt", Small::sqrt},
    {"rsqrt", Small::rsqrt},
    {"reciprocal", Small::reciprocal},
    {"pow", Small::square},
    {"exp", Small::exp},
    {"log", Small::log},
    {"sigmoid", Small::sigmoid},
    {"softplus", Small::softplus},
    {"silu", Small::silu},
    {"gelu", Small::gelu},
    {"bloom_gelu", Small::gelu_tanh},
    {"relu", Small::relu},
    {"compare", Small::less},
    {"and", Small::both},
    {"invert", Small::invert},
    {"isneginf", Small::isneginf},
    {"where", Small::where},
    {"masked_fill", Small::masked_fill},
    {"tril", Small::tril},
    {"complex_mul", Small::complex_mul},
    {"conj", Small::conj},
};
/// Kinds that launch nothing.
constexpr const char* views[] = {"view",      "alias",   "expand",    "select",
                                 "split",     "unbind",  "as_real",   "squeeze",
                                 "transpose", "permute", "unsqueeze", "unsafe_view"};

/// Whether a kernel of this kind in a backward pass is the gradient of it; the others do the same
/// as forward there, as a sum of gradients does.
bool has_gradient(Small what) {
  constexpr Small none[] = {Small::sum,   Small::norm,  Small::all,   Small::cumsum,
                            Small::fill,  Small::cat,   Small::stack, Small::chunk_cat,
                            Small::split, Small::zeros, Small::tril,  Small::sgn,
                            Small::conj,  Small::adamw, Small::sort};
  if (std::find(std::begin(none), std::end(none), what) != std::end(none)) return false;
  if (what >= Small::softmax) return true;
  return what == Small::mean || what == Small::abs || what == Small::dropout ||
         what == Small::masked_fill || (what >= Small::tanh && what <= Small::relu);
}

/// The operator's own proportions, cut down to what the host multiplies in a moment.
ProductShape small_product(const Compute& c, bool attends) {
  ProductShape shape{rate_of(c.dtype), 1, 1, 1, 1};
  const auto cut = [](std::int64_t size, std::int64_t most) {
    return std::clamp<std::int64_t>(size, 1, most);
  };
  if (attends) {
    shape.m = shape.n = cut(c.m, 70);
    shape.k = (cut(c.k, 256) + 31) / 32 * 32;
    shape.groups = cut(c.groups, 2);
    return shape;
  }
  shape.m = cut(c.m, 48);
  shape.n = cut(c.n, 40);
  shape.k = cut(c.k, 192);
  // Tensor cores want rows of 16 bytes.
  for (std::int64_t* size : {&shape.n, &shape.k}) *size = (*size + 7) / 8 * 8;
  shape.groups = cut(c.groups, 3);
  return shape;
}

/// Gradients of attention: few tokens, since each number of theirs goes through all.
SmallShape small_attention(const Compute& c) {
  SmallShape s{Small::attention, true};
  s.tokens = std::clamp<std::int64_t>(c.m, 1, 12);
  s.columns = (std::clamp<std::int64_t>(c.k, 1, 128) + 31) / 32 * 32;
  s.rows = s.tokens * std::clamp<std::int64_t>(c.groups, 1, 2);
  return s;
}

}  // namespace

std::string test_name(const SmokeCase& c) {
  constexpr const char* names[] = {"copy",
                                   "add",
                                   "sub",
                                   "mul",
                                   "div",
                                   "floor divide",
                                   "lerp",
                                   "addcmul",
                                   "addcdiv",
                                   "minimum",
                                   "neg",
                                   "abs",
                                   "sign",
                                   "sin",
                                   "cos",
                                   "tanh",
                                   "sqrt",
                                   "rsqrt",
                                   "reciprocal",
                                   "square",
                                   "exp",
                                   "log",
                                   "sigmoid",
                                   "softplus",
                                   "silu",
                                   "gelu",
                                   "gelu by tanh",
                                   "relu",
                                   "less",
                                   "and",
                                   "not",
                                   "isneginf",
                                   "where",
                                   "masked fill",
                                   "tril",
                                   "fill",
                                   "zeros",
                                   "complex mul",
                                   "conj",
                                   "dropout",
                                   "adamw",
                                   "row sum",
                                   "row mean",
                                   "row norm",
                                   "all",
                                   "cumsum",
                                   "softmax",
                                   "log softmax",
                                   "nll",
                                   "squared error",
                                   "binary cross entropy",
                                   "rms norm",
                                   "layer norm",
                                   "weight norm",
                                   "sort",
                                   "topk",
                                   "lstm cell",
                                   "max pool",
                                   "avg pool",
                                   "avg pool to a size",
                                   "upsample",
                                   "pad",
                                   "roll",
                                   "tile",
                                   "cat",
                                   "stack",
                                   "chunk cat",
                                   "split",
                                   "gather",
                                   "rows of a table",
                                   "sums of rows",
                                   "attention"};
  static_assert(std::size(names) == static_cast<std::size_t>(Small::attention) + 1);
  if (c.test == SmokeTest::none) return "";
  if (c.test == SmokeTest::product) return "product";
  if (c.test == SmokeTest::attention) return "attention";
  const std::string name = names[static_cast<int>(c.small.what)];
  return (c.small.backward ? "gradient of " : "") + name;
}

std::string tested_by(const SmokeCase& c) {
  if (c.test == SmokeTest::none) return "";
  return c.test == SmokeTest::product ? "cuBLAS" : "own kernel";
}

std::int64_t smoke_bytes(const SmokeCase& c) {
  const std::int64_t size = element_size(c.dtype);
  const ProductShape& p = c.shape;
  switch (c.test) {
    case SmokeTest::none:
      return 0;
    case SmokeTest::product:
      return p.groups * ((p.m * p.k + p.k * p.n) * size + p.m * p.n * 4);
    case SmokeTest::attention:
      return 4 * p.groups * p.m * p.k * size;
    default:
      break;
  }
  const SmallShape& s = c.small;
  std::int64_t bytes = s.rows * result_a_row(s) * element_size(small_result(s.what, c.dtype));
  for (int input = 0; input < 4; ++input) bytes += s.rows * input_a_row(s, input) * size;
  return bytes;
}

SmokeCase smoke_case_of(const Compute& compute) {
  SmokeCase c;
  c.kind = compute.kind;
  c.dtype = compute.dtype;
  c.backward = compute.backward;
  const Work work = work_of(compute);
  if (work != Work::memory) {
    if (c.dtype != DType::f32 && !is_half(c.dtype)) {
      c.why = std::string("products in ") + dtype_name(c.dtype) + " are not run";
    } else if (work == Work::attention && c.backward) {
      c.test = SmokeTest::small;
      c.small = small_attention(compute);
    } else {
      c.test = work == Work::product ? SmokeTest::product : SmokeTest::attention;
      c.shape = small_product(compute, work == Work::attention);
    }
    return c;
  }
  const auto row = std::find_if(std::begin(table), std::end(table),
                                [&](const Row& r) { return c.kind == r.kind; });
  if (row == std::end(table)) {
    const bool view = std::find(std::begin(views), std::end(views), c.kind) != std::end(views);
    c.why = view ? "a view, which launches nothing" : "no kernel of ours is like it";
    return c;
  }
  // A loss is typed by its labels where it reads them first.
  if (row->small == Small::nll_loss && !is_floating(c.dtype)) c.dtype = DType::f32;
  c.small.what = row->small;
  c.small.backward = c.backward && has_gradient(row->small);
  if (row->small == Small::dropout && !c.small.backward) c.small.rows = 1024;
  const bool kernels_take = c.dtype == DType::f32 || is_half(c.dtype);
  c.test = c.small.backward || !kernels_take ? SmokeTest::small : row->forward;
  if (row->small == Small::adamw && c.dtype != DType::f32) c.test = SmokeTest::small;
  return c;
}

}  // namespace shardfit::calibrate
