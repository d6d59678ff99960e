#pragma once
// One card of an option that holds or works much more than another.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/verdict.h"

namespace shardfit::search {

struct Option;
struct Gpu;

struct Imbalance {
  enum class Kind : std::uint8_t {
    memory,   // the least bytes to reserve in which it runs
    share,    // bytes of a category at the peak, though their sum may hide it
    time,     // seconds of a step in which it computes
    context,  // bytes outside the allocator, of other processes
    link,     // seconds of a step in which what it exchanges passes through the host
  };
  Kind kind = Kind::memory;
  std::size_t gpu = 0, against = 0;  // that needs most, and least
  double ratio = 1;                  // of the two; of a share: to an even one
  std::string what;                  // "needs 58.5 GiB, 1.48 times what GPU 2 (stage 2) needs"
  std::string cause;                 // "" where none is known
  std::vector<Category> categories;  // of a share
  std::int64_t cost_bytes = 0;       // above the mean of all GPUs
  /// Likewise, of a step; of a link: by which its step is longer than with equal ones, simulated
  /// with the fix.
  double cost_seconds = 0;

  /// The change that evens it out best at the least cost, the whole option simulated anew.
  struct Fix {
    std::string words;  // "stage-layers 6,9,9,8"
    Verdict verdict = Verdict::fits;
    std::int64_t needed = 0;  // of the GPU that needs most
    std::int64_t held = 0;    // of a share: of the GPU that holds most of its categories, if known
    std::optional<double> step_seconds;
  };
  std::optional<Fix> fix;
};

/// "memory", "share", "time", "context", "link".
const char* kind_name(Imbalance::Kind kind);

/// Bytes of these categories at a GPU's peak.
std::int64_t held_of(const Gpu& gpu, const std::vector<Category>& categories);

/// GPUs of one option that need or compute more than others by the share of `threshold`, with the
/// cause.
std::vector<Imbalance> find_imbalances(const Option& option, double threshold);

/// Simulates what may even them out, and keeps what does.
void find_fixes(Option& option);

/// As a sentence.
std::string imbalance_text(const Option& option, const Imbalance& imbalance);

}  // namespace shardfit::search
