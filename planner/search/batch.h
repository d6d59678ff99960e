#pragma once
// The largest batch: what fits of micro-batch by sequence, and what stops the next one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/plan.h"

namespace shardfit::search {

/// One job of the table.
struct BatchCell {
  std::int64_t micro_batch = 1, sequence = 1;
  Verdict verdict = Verdict::fits;
  std::string phase;                     // that limits it: of the failure, else of the peak
  std::string reason;                    // one sentence
  std::optional<std::int64_t> headroom;  // of the budget; empty where it was not run
};

/// One sequence length.
struct BatchRow {
  std::int64_t sequence = 1;
  std::int64_t largest = 0;       // micro-batch that fits; 0: none
  std::vector<BatchCell> tried;   // by micro-batch, ascending
  std::optional<BatchCell> next;  // the smallest above `largest` that is known not to fit
  bool decided = true;            // false: stopped, and a larger one than `largest` may fit
  const BatchCell* find(std::int64_t micro_batch) const;
};

/// One change of a job that fits, and whether it still does.
struct CliffStep {
  std::string words;  // "64 tokens more", "attention eager"
  BatchCell cell;
};

struct BatchTable {
  std::vector<std::int64_t>
      micro_batches;  // columns: powers of two, or divisors of the global batch
  std::vector<BatchRow> rows;
  /// False: the network reads no tokens, so that one row stands for every length and nothing below
  /// is said of sequences.
  bool reads_sequence = true;
  /// The longest sequence that fits at the job's micro-batch, in steps of `sequence_step`; 0: none.
  std::int64_t longest_sequence = 0;
  std::optional<BatchCell> longer;  // one step above it
  /// The largest batch of the job's own sequence (or of the first that fits), and what single
  /// changes of it do.
  std::optional<BatchCell> edge;
  std::vector<CliffStep> cliff;
  /// Not `no`: what was not known by then is missing.
  StopCheck::Why stopped = StopCheck::Why::no;
};

inline constexpr std::int64_t sequence_step = 64;
/// The largest micro-batch that is tried.
inline constexpr std::int64_t most_samples = 1 << 16;

/// The table of an option over these sequences, as far as `stop`, where given, lets it come. Where
/// the job names a global batch it is kept, with as many passes as that takes. Found by doubling
/// and bisection; then the neighbours above, since allocated bytes need not grow with every sample
/// (another kernel may be dispatched).
BatchTable find_batches(const Option& option, const std::vector<std::int64_t>& sequences,
                        const StopCheck* stop = nullptr);

/// Whether the job's bytes depend on the sequence; true where the model's program does not say.
bool reads_sequence(const Option& option);

/// Powers of two from 512 up to the model's positions, 32,768 at most.
std::vector<std::int64_t> usual_sequences(const spec::ModelSpec& model);

}  // namespace shardfit::search
