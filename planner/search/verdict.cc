#include "search/verdict.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace shardfit::search {
namespace {

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

/// Peaks of the whole program: what a plan speaks of begins with loading.
void include_loading(run::RunResult& result) {
  result.allocated_peak = std::max(result.allocated_peak, result.loading.allocated);
  result.reserved_peak = std::max(result.reserved_peak, result.loading.reserved);
  for (const run::PhaseReading& phase : result.phases) {
    result.allocated_peak = std::max(result.allocated_peak, phase.allocated);
  }
}

/// A run under `limits`, given another: the same where the driver would have answered the same.
run::RunResult run_within(const Program& program, const run::RunLimits& limits,
                          const run::RunResult& other) {
  if (other.same_capacities.holds(limits.total - limits.context)) return other;
  return run_program(program, limits);
}

std::string retries_text(std::int64_t retries) {
  return std::to_string(retries) + (retries == 1 ? " retry" : " retries") + " in three steps";
}

std::string why_it_fails(const Program& program, const Judgement& judgement) {
  const auto& failure = *judgement.limited.failure;
  const StorageInfo& storage = program.storages[failure.storage];
  const std::string& layer = program.modules[storage.module];
  std::string text =
      failure.step == 0 ? "loading" : "step " + std::to_string(failure.step) + " " + failure.phase;
  text += ", " + std::string(storage.kind);
  if (!layer.empty()) text += " in " + layer;
  return text + " (" + std::string(category_name(storage.category)) + "): " + failure.error.text();
}

/// All but the least capacity.
Judgement verdict_of(const Program& program, const Card& card,
                     const run::AllocatorSettings& settings, const Accuracy& accuracy,
                     const StopCheck* stop) {
  Judgement out;
  run::RunLimits limits;
  limits.stop = stop;
  limits.settings = settings;
  out.budget = card.usable - card.outside();
  if (countable(program)) {
    out.unlimited = run_program(program, limits);
  } else {
    out.unlimited.failure = run::RunResult::Failure{};
    const auto first = std::find_if(
        program.storages.begin(), program.storages.end(),
        [](const StorageInfo& s) { return s.bytes > run::CachingAllocator::largest_total; });
    out.unlimited.failure->step = first->category == Category::parameter ? 0 : 1;
  }
  if (out.unlimited.failure) {
    out.beyond_count = true;
    out.verdict = Verdict::does_not_fit;
    out.needed = run::CachingAllocator::largest_total;
    out.reason = "it needs more than " + size(out.needed);
    return out;
  }
  include_loading(out.unlimited);
  const std::int64_t peak = out.unlimited.allocated_peak;
  const auto share = [&](double part) {
    return static_cast<std::int64_t>(std::ceil(part * static_cast<double>(peak)));
  };
  out.low = peak + share(accuracy.low);
  out.high = peak + share(accuracy.high);
  limits.total = card.usable;
  limits.context = std::min(card.outside(), card.usable);
  out.limited = run_within(program, limits, out.unlimited);
  if (out.limited.failure) {
    out.verdict = Verdict::does_not_fit;
    out.reason = why_it_fails(program, out);
    return out;
  }
  if (out.limited.retries > 0) {
    out.verdict = Verdict::tight;
    out.reason =
        "it runs only because cached blocks are given back (" + retries_text(out.limited.retries) +
        "): free memory lies in pieces, which are too small for the next request until then";
    return out;
  }
  limits.context = card.most_outside() + (out.high - peak);
  const bool room = limits.context < card.usable;
  const run::RunResult upper = room ? run_within(program, limits, out.limited) : run::RunResult{};
  if (!room || upper.failure || upper.retries > 0) {
    out.verdict = Verdict::tight;
    out.reason = std::string("it runs as predicted, but at the upper end of the interval it ") +
                 (!room || upper.failure ? "runs out of memory" : "has to give cached blocks back");
    return out;
  }
  return out;
}

}  // namespace

const char* verdict_text(Verdict verdict) {
  constexpr const char* texts[] = {"fits", "tight", "does not fit"};
  return texts[static_cast<int>(verdict)];
}

bool decides_over(const Judgement& one, const Judgement& other) {
  return one.verdict > other.verdict ||
         (one.verdict == other.verdict && one.headroom() < other.headroom());
}

bool countable(const Program& program) {
  return std::none_of(program.storages.begin(), program.storages.end(), [](const StorageInfo& s) {
    return s.bytes > run::CachingAllocator::largest_total;
  });
}

Judgement judge(const Program& program, const Card& card, const run::AllocatorSettings& settings,
                const Accuracy& accuracy, Find find, const StopCheck* stop) {
  Judgement out = verdict_of(program, card, settings, accuracy, stop);
  if (find == Find::all) find_needed(out, program, card, settings, stop);
  return out;
}

void find_needed(Judgement& judgement, const Program& program, const Card& card,
                 const run::AllocatorSettings& settings, const StopCheck* stop) {
  if (judgement.beyond_count) return;
  run::RunLimits limits;
  limits.stop = stop;
  limits.settings = settings;
  limits.total = card.usable;
  limits.context = std::min(card.outside(), card.usable);
  const run::KnownCapacity known{judgement.budget, !judgement.limited.failure};
  judgement.needed = run::least_capacity(program, limits, false, judgement.unlimited, known);
  if (judgement.verdict == Verdict::does_not_fit) {
    judgement.reason += " Short by " + size(-judgement.headroom()) + ".";
  } else if (judgement.verdict == Verdict::fits) {
    judgement.reason = size(judgement.headroom()) + " of the budget stay free";
  }
}

}  // namespace shardfit::search
