#include "model/routing.h"

#include <doctest/doctest.h>

#include <numeric>
#include <stdexcept>

using shardfit::model::dealt_rows;
using shardfit::model::worst_rows;
using Rows = std::vector<std::int64_t>;

TEST_CASE("tokens are dealt out to experts by shares, each expert once a token") {
  CHECK(dealt_rows(10, 2, {1, 1, 1, 1}) == Rows{5, 5, 5, 5});
  CHECK(dealt_rows(10, 1, {1, 1, 1}) == Rows{4, 3, 3});
  CHECK(dealt_rows(8, 2, {1, 1, 0, 0}) == Rows{8, 8, 0, 0});  // the worst: all choose the same
  CHECK(dealt_rows(8, 1, {3, 1}) == Rows{6, 2});
  CHECK(dealt_rows(8, 2, {3, 1}) == Rows{8, 8});              // two of two experts take all
  CHECK(dealt_rows(10, 2, {9, 0.5, 0.5}) == Rows{10, 5, 5});  // none gets more than all tokens
  CHECK(dealt_rows(10, 2, {1, 0, 0}) == Rows{10, 5, 5});      // nor can one alone take both choices
}

TEST_CASE("the worst routing runs every expert and fills the first ones") {
  CHECK(worst_rows(10, 2, 4) == Rows{9, 9, 1, 1});
  CHECK(worst_rows(10, 1, 4) == Rows{7, 1, 1, 1});
  CHECK(worst_rows(2, 1, 4) == Rows{1, 1, 0, 0});
  CHECK(worst_rows(5, 2, 2) == Rows{5, 5});
}

TEST_CASE("whatever the shares, every choice is dealt out") {
  for (std::int64_t tokens = 1; tokens < 40; ++tokens) {
    for (std::int64_t chosen = 1; chosen <= 5; ++chosen) {
      std::vector<double> shares;
      for (int i = 0; i < 5; ++i) shares.push_back(static_cast<double>((tokens * 7 + i * i) % 4));
      shares[0] += 0.1;
      const Rows rows = dealt_rows(tokens, chosen, shares);
      CHECK(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == tokens * chosen);
      for (const std::int64_t n : rows) CHECK((n >= 0 && n <= tokens));
    }
  }
}

TEST_CASE("shares that cannot be dealt by are refused") {
  CHECK_THROWS_AS(dealt_rows(4, 3, {1, 1}), std::runtime_error);
  CHECK_THROWS_AS(dealt_rows(4, 1, {0, 0}), std::runtime_error);
}
