#include "search/block_levels.h"

#include <algorithm>
#include <cmath>

#include "base/comma_list.h"
#include "base/format.h"

namespace shardfit::search {
namespace {

using partition::BlockChain;
using partition::BlockCost;

constexpr int outside = -1;
/// Shares of one another within which two numbers of blocks are the same.
constexpr double same_share = 0.02;
/// Budgets that are tried between none and all, at most.
constexpr std::int64_t most_budgets = 128;
/// Beyond any network.
constexpr std::int64_t most_blocks = 1 << 16;

/// The block of each module of a program; `outside` where it is in none.
std::vector<int> blocks_of_modules(const Program& program, const std::vector<std::string>& paths) {
  std::vector<int> blocks(program.modules.size(), outside);
  for (std::size_t m = 0; m < program.modules.size(); ++m) {
    const std::string& module = program.modules[m];
    for (std::size_t p = 0; p < paths.size(); ++p) {
      const bool within = module == paths[p] || module.starts_with(paths[p] + ".");
      // A block within a block belongs to the outer one, which is run again as a whole.
      if (within && (blocks[m] == outside ||
                     paths[p].size() < paths[static_cast<std::size_t>(blocks[m])].size())) {
        blocks[m] = static_cast<int>(p);
      }
    }
  }
  return blocks;
}

/// One step of a program, as blocks see it.
struct Step {
  std::vector<int> order;          // blocks as they first run
  std::vector<std::int64_t> kept;  // by block: alive when the backward begins
  std::int64_t forward_peak = 0;   // before the backward comes to a block
  std::vector<std::int64_t> peak;  // by block: highest bytes while its backward runs
  std::vector<double> seconds;     // by block: all its operators
};

/// Walks the last step of a program.
class Walk {
 public:
  Walk(const Program& program, const std::vector<std::string>& paths,
       const run::OperatorTimes& times)
      : program_(program), times_(times), block_of_(blocks_of_modules(program, paths)) {
    step_.kept.resize(paths.size());
    step_.peak.resize(paths.size());
    step_.seconds.resize(paths.size());
    first_.resize(paths.size());
    own_.resize(program.storages.size());
  }

  Step run() {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      if (program_.instructions[i].action == Action::reset_peaks) begin = i;
    }
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (instruction.action == Action::allocate) allocate(instruction.id, i >= begin);
      if (instruction.action == Action::release) release(instruction.id);
      if (instruction.action == Action::compute && i >= begin) compute(instruction.id);
      if (instruction.action == Action::phase && i >= begin && backward_) {
        done_ = done_ || program_.phases[instruction.id].name == "backward";
      }
    }
    if (!backward_) end_forward();
    return std::move(step_);
  }

 private:
  int block(std::uint32_t module) const { return block_of_[module]; }

  void end_forward() {
    backward_ = true;
    step_.kept = now_;
  }

  void see(int block, bool backward) {
    if (backward && !backward_) end_forward();
    if (block == outside) return;
    const auto b = static_cast<std::size_t>(block);
    if (!first_[b] && !backward) {
      first_[b] = true;
      step_.order.push_back(block);
    }
    if (backward) current_ = block;
  }

  void reach() {
    if (current_ == outside) {
      step_.forward_peak = std::max(step_.forward_peak, live_);
    } else {
      std::int64_t& peak = step_.peak[static_cast<std::size_t>(current_)];
      peak = std::max(peak, live_);
    }
  }

  void allocate(std::uint32_t id, bool in_step) {
    const StorageInfo& storage = program_.storages[id];
    live_ += storage.bytes;
    if (!in_step || done_) return;
    if (storage.category == Category::optimizer_state) return;
    if (now_.empty()) now_.resize(first_.size());
    const int in = block(storage.module);
    see(in, storage.backward);
    if (in != outside && !storage.backward) {
      now_[static_cast<std::size_t>(in)] += storage.bytes;
      own_[id] = true;
    }
    reach();
  }

  void release(std::uint32_t id) {
    const StorageInfo& storage = program_.storages[id];
    live_ -= storage.bytes;
    if (!own_[id]) return;
    now_[static_cast<std::size_t>(block(storage.module))] -= storage.bytes;
    own_[id] = false;
  }

  void compute(std::uint32_t id) {
    const Compute& compute = program_.computes[id];
    const int in = block(compute.module);
    if (in != outside) step_.seconds[static_cast<std::size_t>(in)] += times_.seconds(compute);
  }

  const Program& program_;
  const run::OperatorTimes& times_;
  std::vector<int> block_of_;
  std::vector<char> first_, own_;
  std::vector<std::int64_t> now_;  // by block: alive, of its forward in this step
  std::int64_t live_ = 0;
  bool backward_ = false, done_ = false;
  int current_ = outside;  // whose backward runs
  Step step_;
};

bool near(double a, double b) { return std::abs(a - b) <= same_share * std::max(a, b); }

}  // namespace

BlockChain block_chain(const Program& none, const Program& full,
                       const std::vector<std::string>& paths, const run::OperatorTimes& times) {
  const Step without = Walk(none, paths, times).run();
  const Step with = Walk(full, paths, times).run();
  BlockChain chain;
  std::int64_t before = 0;
  for (const int block : without.order) {
    const auto b = static_cast<std::size_t>(block);
    BlockCost cost;
    cost.saved = without.kept[b];
    cost.kept = std::min(with.kept[b], cost.saved);
    cost.again_seconds = std::max(0.0, with.seconds[b] - without.seconds[b]);
    before += cost.saved;
    cost.beside = std::max<std::int64_t>(0, without.peak[b] - before);
    chain.blocks.push_back(cost);
  }
  chain.beside = std::max<std::int64_t>(0, without.forward_peak - before);
  return chain;
}

bool uniform(const BlockChain& chain) {
  if (chain.blocks.empty()) return true;
  const BlockCost& first = chain.blocks.front();
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  return std::all_of(chain.blocks.begin(), chain.blocks.end(), [&](const BlockCost& one) {
    return near(number(one.saved), number(first.saved)) &&
           near(number(one.saved - one.kept), number(first.saved - first.kept)) &&
           near(one.again_seconds, first.again_seconds);
  });
}

std::vector<std::vector<std::int64_t>> block_levels(const BlockChain& chain) {
  const auto count = static_cast<std::int64_t>(chain.blocks.size());
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(i);
  const std::int64_t most = bytes_of(chain, {}), least = bytes_of(chain, all);
  const std::int64_t budgets = std::min(4 * count, most_budgets);
  std::vector<std::vector<std::int64_t>> levels;
  for (std::int64_t n = 1; n < budgets; ++n) {
    const auto choice = choose_blocks(chain, most - (most - least) / budgets * n);
    if (!choice || choice->again.empty() || choice->again.size() == all.size()) continue;
    if (levels.empty() || levels.back() != choice->again) levels.push_back(choice->again);
  }
  return levels;
}

std::string block_words(const std::vector<std::int64_t>& blocks) {
  std::string text;
  for (std::size_t i = 0; i < blocks.size();) {
    std::size_t end = i;
    while (end + 1 < blocks.size() && blocks[end + 1] == blocks[end] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(blocks[i]);
    if (end > i) text += "-" + std::to_string(blocks[end]);
    i = end + 1;
  }
  return text;
}

std::optional<std::vector<std::int64_t>> read_blocks(std::string_view words) {
  std::vector<std::int64_t> blocks;
  for (const std::string_view part : comma_list(words)) {
    const std::size_t dash = part.find('-');
    const auto from = parse_integer(std::string(part.substr(0, dash)));
    const auto to =
        dash == std::string_view::npos ? from : parse_integer(std::string(part.substr(dash + 1)));
    const bool ascends = from && to && *from >= 0 && *from <= *to && *to < most_blocks &&
                         (blocks.empty() || *from > blocks.back());
    if (!ascends) return {};
    for (std::int64_t n = *from; n <= *to; ++n) blocks.push_back(n);
  }
  return blocks;
}

}  // namespace shardfit::search
