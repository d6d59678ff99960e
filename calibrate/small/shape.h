#pragma once
// What the small kernels of `smoke` compute, and the sizes of their inputs and results.

#include <cstdint>

#include "calibrate/values.h"

namespace shardfit::calibrate {

/// What is computed of rows a, b, c in (-1, 1) (integers: in (-1000, 1000)); formulas are moved
/// away from the edges of their domains.
enum class Small : std::uint8_t {
  copy,
  add,
  sub,
  mul,
  div,           // a / (1.5 + b)
  floor_divide,  // rounded down, of a / (3 + |b|)
  lerp,          // a + 0.1 (b - a)
  addcmul,       // a + 0.5 b b
  addcdiv,       // a + 0.5 b / (1.5 + a)
  minimum,
  neg,
  abs,
  sgn,
  sin,
  cos,
  tanh,
  sqrt,        // of |a| + 0.1
  rsqrt,       // of |a| + 0.1
  reciprocal,  // of 1.5 + a
  square,
  exp,
  log,  // of 1.5 + a
  sigmoid,
  softplus,
  silu,
  gelu,
  gelu_tanh,
  relu,
  less,      // a < b
  both,      // a > 0 and b > 0
  invert,    // not a > 0
  isneginf,  // of -inf where a < 0
  where,     // a > 0 ? b : c
  masked_fill,
  tril,
  fill,
  zeros,
  complex_mul,  // of pairs
  conj,
  dropout,  // values, then the mask
  adamw,    // parameter a, gradient b, mean c; the parameter after the first step
  // Of rows.
  sum,
  mean,
  norm,
  all,
  cumsum,
  softmax,
  log_softmax,
  nll_loss,  // of logarithms a, the label being row % columns
  mse_loss,
  bce_loss,  // with logits a and labels b > 0
  rms_norm,
  layer_norm,
  weight_norm,  // a over its norm, times the first b
  sort,         // values, then places
  topk,         // a quarter of the row, values, then places
  lstm_cell,    // a: four gates, b: the cell; hidden, then cell
  // Of places: a row is a picture of 8 by 12 where it is one.
  max_pool,           // 3 x 3, stride 2, padding 1: values, then places
  avg_pool,           // 2 x 2
  adaptive_avg_pool,  // to 2 x 3
  upsample,           // twice, nearest
  pad,                // four zeros before and behind
  roll,               // by 5
  tile,               // twice
  cat,
  stack,      // a and b by turns
  chunk_cat,  // halves of a and b by turns
  split,      // quarters 0, 2, 1, 3
  gather,     // places 5 j j
  embedding,  // row r: row r r of a
  embedding_bag,
  attention  // the three gradients; forward has a kernel of its own
};

struct SmallShape {
  Small what = Small::copy;
  bool backward = false;                              // the gradient of a, of a result's gradient d
  std::int64_t rows = 33;                             // attention: heads times tokens
  std::int64_t columns = 96;                          // attention: width of a head
  std::int64_t tokens = 0;                            // attention
  static constexpr std::int64_t high = 8, wide = 12;  // of a picture
};

/// Of one row: how many numbers of result the gradient is given for, and how many there are in all
/// (places and masks behind them).
SHARDFIT_BOTH inline std::int64_t values_a_row(Small what, std::int64_t n) {
  switch (what) {
    case Small::sum:
    case Small::mean:
    case Small::norm:
    case Small::all:
    case Small::nll_loss:
    case Small::mse_loss:
    case Small::bce_loss:
      return 1;
    case Small::topk:
    case Small::max_pool:
    case Small::avg_pool:
      return n / 4;
    case Small::adaptive_avg_pool:
      return n / 16;
    case Small::upsample:
      return 4 * n;
    case Small::pad:
      return n + 8;
    case Small::tile:
    case Small::cat:
    case Small::stack:
    case Small::chunk_cat:
    case Small::lstm_cell:
      return 2 * n;
    default:
      return n;
  }
}
SHARDFIT_BOTH inline std::int64_t result_a_row(const SmallShape& s) {
  if (s.what == Small::attention) return 3 * s.columns;
  if (s.backward) return s.what == Small::lstm_cell ? 4 * s.columns : s.columns;
  const bool twice = s.what == Small::dropout || s.what == Small::sort || s.what == Small::topk ||
                     s.what == Small::max_pool;
  return (twice ? 2 : 1) * values_a_row(s.what, s.columns);
}
/// Numbers a row of input 0, 1, 2 (a, b, c) or 3 (d).
SHARDFIT_BOTH inline std::int64_t input_a_row(const SmallShape& s, int input) {
  if (input == 3) return values_a_row(s.what, s.columns);
  return s.what == Small::lstm_cell && input == 0 ? 4 * s.columns : s.columns;
}

/// The row of a that row r of an embedding takes, and the place that place j of a gather takes.
SHARDFIT_BOTH inline std::int64_t embedded(std::int64_t r, std::int64_t rows) {
  return r * r % rows;
}
SHARDFIT_BOTH inline std::int64_t gathered(std::int64_t j, std::int64_t n) { return 5 * j * j % n; }

inline constexpr double dropout_share = 0.1;

/// Four random words of a counter and a key (Salmon et al. 2011, Parallel Random Numbers: As Easy
/// as 1, 2, 3: Philox-4x32-10), as PyTorch's dropout draws them.
struct Philox {
  std::uint32_t word[4];
};
SHARDFIT_BOTH inline Philox philox(Philox c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c.word[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c.word[2];
    const auto high0 = static_cast<std::uint32_t>(p0 >> 32);
    const auto high1 = static_cast<std::uint32_t>(p1 >> 32);
    c = {{high1 ^ c.word[1] ^ key0, static_cast<std::uint32_t>(p1), high0 ^ c.word[3] ^ key1,
          static_cast<std::uint32_t>(p0)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return c;
}

}  // namespace shardfit::calibrate
