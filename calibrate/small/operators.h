#pragma once
// Operators as one number of their result at a time, for the kernels of `smoke`: plain functions of
// an index, so that tests run the very code of the kernels on the host. Written to be right, not
// to be fast; the references (smoke_reference.cc) share nothing with it but the inputs.

#include "calibrate/small/attention.h"
#include "calibrate/small/elements.h"
#include "calibrate/small/places.h"
#include "calibrate/small/rows.h"

namespace shardfit::calibrate {

/// Number `index` of the result, rows one after the other. `A` is what is computed in: float,
/// double or a 64-bit integer; in(input, index) gives the numbers of inputs 0 to 3 (a, b, c, d) as
/// such.
template <class A, class In>
SHARDFIT_BOTH A small_operator(const SmallShape& s, const In& in, std::int64_t index) {
  const std::int64_t wide = result_a_row(s);
  const std::int64_t row = index / wide, j = index % wide;
  if (s.what == Small::attention) return SmallAttention<A, In>(s, in).at(row, j);
  if (s.what >= Small::max_pool) return SmallPlaces<A, In>(s, in).at(row, j);
  if (s.what >= Small::sum) return SmallRows<A, In>(s, in).at(row, j);
  return SmallElements<A, In>(s, in).at(row, j);
}

}  // namespace shardfit::calibrate
