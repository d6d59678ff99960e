#include "program/degrees.h"

#include <numeric>

namespace shardfit::program {

std::vector<DegreeFault> check_tensor_degree(const SplitNumbers& numbers, std::int64_t degree) {
  struct Row {
    std::int64_t number;
    const char* what;
  };
  std::vector<Row> rows = {{numbers.heads, "attention heads"},
                           {numbers.key_value_heads, "key/value heads"},
                           {numbers.ffn, "channels of the feed-forward layer"}};
  if (numbers.sequence > 0) rows.push_back({numbers.sequence, "tokens of a sequence"});
  std::int64_t common = 0;
  for (const Row& row : rows) common = std::gcd(common, row.number);
  std::vector<DegreeFault> faults;
  for (const Row& row : rows) {
    if (degree >= 1 && row.number % degree == 0) continue;
    faults.push_back({"tp",
                      std::to_string(row.number) + " " + row.what + " do not divide by " +
                          std::to_string(degree),
                      nearest_divisor(common, degree)});
  }
  return faults;
}

}  // namespace shardfit::program
