#include "model/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace shardfit::model {

std::vector<std::int64_t> dealt_rows(std::int64_t tokens, std::int64_t chosen,
                                     const std::vector<double>& shares) {
  const std::size_t count = shares.size();
  if (static_cast<std::int64_t>(count) < chosen) {
    throw std::runtime_error("a token chooses " + std::to_string(chosen) + " experts of " +
                             std::to_string(count));
  }
  if (std::accumulate(shares.begin(), shares.end(), 0.0) <= 0) {
    throw std::runtime_error("the shares of all experts are zero");
  }
  std::vector<std::int64_t> rows(count, 0);
  std::vector<double> open = shares;  // of experts that can take more
  std::int64_t left = tokens * chosen;
  while (left > 0) {
    double sum = std::accumulate(open.begin(), open.end(), 0.0);
    if (sum <= 0) {  // nobody with a share has room: the others take the rest alike
      for (std::size_t i = 0; i < count; ++i) open[i] = rows[i] < tokens ? 1.0 : 0.0;
      sum = std::accumulate(open.begin(), open.end(), 0.0);
    }
    const std::int64_t round = left;
    for (std::size_t i = 0; i < count && left > 0; ++i) {
      const auto fair =
          static_cast<std::int64_t>(std::floor(static_cast<double>(round) * open[i] / sum));
      const std::int64_t takes = std::min({fair, tokens - rows[i], left});
      rows[i] += takes;
      left -= takes;
      if (rows[i] == tokens) open[i] = 0;
    }
    if (left == round) {  // less than one each: the first ones take one more
      for (std::size_t i = 0; i < count && left > 0; ++i) {
        if (open[i] <= 0) continue;
        ++rows[i];
        --left;
        if (rows[i] == tokens) open[i] = 0;
      }
    }
  }
  return rows;
}

std::vector<std::int64_t> worst_rows(std::int64_t tokens, std::int64_t chosen, std::size_t count) {
  std::vector<double> first(count, 0.0);
  std::fill_n(first.begin(), std::min<std::size_t>(count, static_cast<std::size_t>(chosen)), 1.0);
  std::vector<std::int64_t> rows = dealt_rows(tokens, chosen, first);
  std::size_t from = 0;
  for (std::size_t i = static_cast<std::size_t>(chosen); i < count; ++i) {
    from = from == 0 ? static_cast<std::size_t>(chosen) - 1 : from - 1;  // in turn, the last first
    if (rows[from] < 2) break;
    --rows[from];
    ++rows[i];
  }
  return rows;
}

}  // namespace shardfit::model
