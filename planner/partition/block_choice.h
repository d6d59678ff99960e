#pragma once
// Which blocks of a network recompute their forward under a budget of bytes, where each either
// keeps all its backward needs or only what it is run again from.

#include <cstdint>
#include <optional>
#include <vector>

namespace shardfit::partition {

/// A block, in the order of the forward.
struct BlockCost {
  std::int64_t saved = 0;   // bytes it keeps for its backward
  std::int64_t kept = 0;    // of these, where it is run again
  std::int64_t beside = 0;  // highest bytes of its backward, less `saved` of it and those before
  double again_seconds = 0;
};

struct BlockChain {
  std::vector<BlockCost> blocks;
  std::int64_t beside = 0;  // as above, of the moment when all forwards are done
};

struct BlockChoice {
  std::vector<std::int64_t> again;  // blocks that are run again, ascending
  double seconds = 0;               // they take together
  std::int64_t bytes = 0;           // highest of all moments
};

/// Highest bytes of all moments: when the forwards are done, what all blocks keep; in the backward
/// of block i, what those before it keep, and all that i saves.
std::int64_t bytes_of(const BlockChain& chain, const std::vector<std::int64_t>& again);

/// The blocks to run again that take least time within `budget`; of these, the earliest. Exact:
/// lists of (bytes kept so far, seconds) in which none is worse than another in both. Nothing where
/// not even all of them run again suffice.
std::optional<BlockChoice> choose_blocks(const BlockChain& chain, std::int64_t budget);

}  // namespace shardfit::partition
