#pragma once
// The blocks of a network as a chain of costs, read off its programs, and the sets of blocks that
// are worth being run again.

#include <optional>
#include <string>
#include <vector>

#include "partition/block_choice.h"
#include "run/operator_time.h"
#include "tensor/program.h"

namespace shardfit::search {

/// What each block keeps without recompute (`none`) and with all of them run again (`full`), the
/// highest bytes of each one's backward, and the time of its recomputation; in the order they first
/// run. Both programs have one pass a step and record their operators. Blocks that never run are
/// left out.
partition::BlockChain block_chain(const Program& none, const Program& full,
                                  const std::vector<std::string>& paths,
                                  const run::OperatorTimes& times);

/// Whether the blocks are the same within 2 %: then running the first N again is the best choice
/// for every budget (tests/block_choice_test.cc).
bool uniform(const partition::BlockChain& chain);

/// The best choices for budgets between what no recompute and what all of it needs, each once, in
/// the order of their time; neither of these two.
std::vector<std::vector<std::int64_t>> block_levels(const partition::BlockChain& chain);

/// Whether the blocks, ascending, are the first ones.
inline bool are_first(const std::vector<std::int64_t>& blocks) {
  return blocks.empty() || blocks.back() + 1 == static_cast<std::int64_t>(blocks.size());
}

/// "0-5,8".
std::string block_words(const std::vector<std::int64_t>& blocks);
/// The same read; nothing where the words are none or are not ascending.
std::optional<std::vector<std::int64_t>> read_blocks(std::string_view words);

}  // namespace shardfit::search
