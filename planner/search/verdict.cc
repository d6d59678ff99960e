#include "search/verdict.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace shardfit::search {
namespace {

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

/// The highest allocated bytes of every phase, loading included.
std::int64_t highest(const run::RunResult& result) {
  std::int64_t most = result.allocated_peak;
  for (const run::PhaseReading& phase : result.phases) most = std::max(most, phase.allocated);
  return most;
}

std::string why_it_fails(const Program& program, const Judgement& judgement) {
  const auto& failure = *judgement.limited.failure;
  const StorageInfo& storage = program.storages[failure.storage];
  const std::string& layer = program.modules[storage.module];
  std::string text =
      failure.step == 0 ? "loading" : "step " + std::to_string(failure.step) + " " + failure.phase;
  text += ", " + std::string(storage.kind);
  if (!layer.empty()) text += " in " + layer;
  text += " (" + std::string(category_name(storage.category)) + "): " + failure.error.text();
  return text + " Short by " + size(-judgement.headroom()) + ".";
}

}  // namespace

const char* verdict_text(Verdict verdict) {
  constexpr const char* texts[] = {"fits", "tight", "does not fit"};
  return texts[static_cast<int>(verdict)];
}

Judgement judge(const Program& program, const Card& card, const run::AllocatorSettings& settings,
                const Accuracy& accuracy) {
  Judgement out;
  run::RunLimits limits;
  limits.settings = settings;
  out.unlimited = run_program(program, limits);
  const std::int64_t peak = highest(out.unlimited);
  const auto share = [&](double part) {
    return static_cast<std::int64_t>(std::ceil(part * static_cast<double>(peak)));
  };
  out.low = peak + share(accuracy.low);
  out.high = peak + share(accuracy.high);
  out.budget = card.usable - card.outside();
  out.needed = run::least_capacity(program, limits, false);

  limits.total = card.usable;
  limits.context = std::min(card.outside(), card.usable);
  out.limited = run_program(program, limits);
  if (out.limited.failure) {
    out.verdict = Verdict::does_not_fit;
    out.reason = why_it_fails(program, out);
    return out;
  }
  if (out.limited.retries > 0) {
    out.verdict = Verdict::tight;
    out.reason = "it runs only because cached blocks are given back (" +
                 std::to_string(out.limited.retries) + " retries in three steps)";
    return out;
  }
  limits.context = card.most_outside() + (out.high - peak);
  const bool room = limits.context < card.usable;
  const run::RunResult upper = room ? run_program(program, limits) : run::RunResult{};
  if (!room || upper.failure || upper.retries > 0) {
    out.verdict = Verdict::tight;
    out.reason = std::string("it runs as predicted, but at the upper end of the interval it ") +
                 (!room || upper.failure ? "runs out of memory" : "has to give cached blocks back");
    return out;
  }
  out.reason = size(out.headroom()) + " of the budget stay free";
  return out;
}

}  // namespace shardfit::search
