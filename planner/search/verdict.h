#pragma once
// Fits, tight, does not fit: a program replayed through the caching allocator with what the card
// leaves.

#include <cstdint>
#include <optional>
#include <string>

#include "run/observe.h"
#include "search/tables.h"

namespace shardfit::search {

enum class Verdict {
  fits,          // runs without an error and without a retry, at the upper end of the interval too
  tight,         // runs, but gives cached blocks back to do so, or only below the upper end
  does_not_fit,  // ends in the allocator's error
};
/// "fits", "tight", "does not fit".
const char* verdict_text(Verdict verdict);

/// One card as a program finds it.
struct Card {
  std::int64_t usable = 0;  // what the runtime reports as total
  Context context;          // taken outside the allocator by the process
  Context exchange;         // and by the library that exchanges between cards; nothing on one card
  Context stray;            // contexts of other processes: nothing where each keeps to its card
  /// All that is taken outside the allocator.
  std::int64_t outside() const { return context.bytes() + exchange.bytes() + stray.bytes(); }
  std::int64_t most_outside() const { return context.high + exchange.high + stray.high; }
};

struct Judgement {
  Verdict verdict = Verdict::fits;
  std::string reason;  // one sentence

  /// More than the allocator can count on any card: the numbers below are of a part of the run.
  bool beyond_count = false;
  run::RunResult unlimited;        // with no limit on the card; its peaks include loading
  run::RunResult limited;          // on this card; `failure` where it does not fit
  std::int64_t low = 0, high = 0;  // interval of the highest allocated bytes
  std::int64_t needed = 0;         // least bytes to reserve in which it runs
  std::int64_t budget = 0;         // usable - context - exchange
  std::int64_t headroom() const { return budget - needed; }
};

/// Of two GPUs of one job, the one that is further from fitting says what becomes of the job.
bool decides_over(const Judgement& one, const Judgement& other);

/// No storage is larger than an allocator can count; else a run says nothing.
bool countable(const Program& program);

enum class Find {
  all,
  verdict,  // without `needed`, which takes most of the time
};

/// Finds what was left out of a judgement by Find::verdict, and says it.
void find_needed(Judgement& judgement, const Program& program, const Card& card,
                 const run::AllocatorSettings& settings, const StopCheck* stop = nullptr);

/// Replays `program` without limit; on the card; on the card with the context and the peak at the
/// upper ends of their intervals. Throws Stopped where `stop` says so.
Judgement judge(const Program& program, const Card& card, const run::AllocatorSettings& settings,
                const Accuracy& accuracy, Find find = Find::all, const StopCheck* stop = nullptr);

}  // namespace shardfit::search
