#pragma once
// How many tokens each expert of a mixture gets.

#include <cstdint>
#include <vector>

namespace shardfit::model {

/// `tokens` x `chosen` places dealt out by shares (none negative): whole numbers, their sum exact,
/// no expert more than `tokens`, since a token chooses an expert once. What an expert cannot take
/// goes to the others by their shares, then to any. Throws runtime_error where the shares are all
/// zero or there are fewer experts than a token chooses.
std::vector<std::int64_t> dealt_rows(std::int64_t tokens, std::int64_t chosen,
                                     const std::vector<double>& shares);

/// The first `chosen` of `count` experts take all that is left after one row for each of the
/// others, as far as rows go.
std::vector<std::int64_t> worst_rows(std::int64_t tokens, std::int64_t chosen, std::size_t count);

}  // namespace shardfit::model
