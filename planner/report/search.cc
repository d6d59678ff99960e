// What a search over configurations found, for people.

#include "base/format.h"
#include "report/report.h"
#include "search/joint.h"

namespace shardfit::report {
namespace {

using search::Best;
using search::Found;
using search::SearchResult;

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }
std::string time(double seconds) { return format_seconds(Seconds{seconds}); }

const char* objective_words(spec::Objective objective) {
  constexpr const char* words[] = {"shortest step", "most samples a second", "smallest memory"};
  return words[static_cast<int>(objective)];
}

std::string bound_words(const Best& best) {
  if (best.objective == spec::Objective::step) return time(best.bound);
  if (best.objective == spec::Objective::throughput) {
    return best.bound > 0 ? format_number(1 / best.bound) + " samples a second" : "not known";
  }
  return size(static_cast<std::int64_t>(best.bound));
}

std::string found_words(const Found& found) {
  std::string text = found.configuration.words();
  if (found.step_seconds) {
    text += ": " + time(*found.step_seconds) + " a step, " +
            format_number(found.samples_per_second) + " samples a second";
  }
  return found.needed > 0 ? text + ", needs " + size(found.needed) : text;
}

std::string best_words(const Best& best, bool all_tried) {
  std::string text = std::string(objective_words(best.objective)) + ": ";
  if (!best.found && !best.proven) return text + "nothing that fits yet";
  const std::string proven = all_tried ? "proven" : "proven of what was tried";
  if (!best.found) return text + "nothing fits, " + proven;
  text += found_words(*best.found);
  if (best.proven) return text + " (gap 0, " + proven + ")";
  return text + " (gap " + format_percent(best.gap()) + ": none is better than " +
         bound_words(best) + ")";
}

std::string shadow_words(const SearchResult& result) {
  if (!result.shadow) return "";
  const search::ShadowPrice& price = *result.shadow;
  if (result.objective == spec::Objective::throughput) {
    return "a GiB more would be worth " + format_number(price.samples_per_second_per_gib()) +
           " samples a second: with " + size(price.short_bytes) +
           " more (interval and no retry included), " + found_words(price.next) + " would fit, " +
           format_number(price.more_samples_per_second) + " more a second";
  }
  return "a GiB more would be worth " + time(price.seconds_per_gib()) + " a step: with " +
         size(price.short_bytes) + " more (interval and no retry included), " +
         found_words(price.next) + " would fit, " + time(price.saved_seconds) + " shorter";
}

bool fits_somewhere(const SearchResult& result) {
  return !result.best.empty() && result.best.front().found.has_value();
}

}  // namespace

std::vector<std::string> search_lines(const SearchResult& result) {
  std::string text = "searched for the " + std::string(objective_words(result.objective)) + ": " +
                     format_count(result.configurations) + " configurations, " +
                     format_count(result.run) + " run, " + format_count(result.too_large) +
                     " too large by a bound";
  if (result.not_better > 0) {
    text += ", " + format_count(result.not_better) + " not better by a bound";
  }
  if (!result.stopped.empty()) {
    text += ", " + format_count(result.left) + " left when " +
            (result.stopped == "budget" ? "the budget was used up" : "interrupted");
  }
  std::vector<std::string> lines{text};
  for (const Best& best : result.best) {
    lines.push_back(best_words(best, result.not_tried.empty()));
  }
  for (const std::string& words : result.not_tried) lines.push_back("not tried: " + words);
  if (fits_somewhere(result) && result.objective == spec::Objective::memory) {
    lines.push_back(
        "no price of memory: the least is looked for, so more of it would change nothing");
  }
  const std::string price = shadow_words(result);
  if (!price.empty()) {
    lines.push_back(price);
  } else if (fits_somewhere(result) && result.stopped.empty() &&
             result.objective != spec::Objective::memory) {
    const bool samples = result.objective == spec::Objective::throughput;
    const std::string none = samples ? "bring more samples a second" : "save time";
    if (!result.all_dearer) {
      lines.push_back("none of the configurations that lack least memory would " + none +
                      "; larger ones were not run");
    } else {
      lines.push_back(samples ? "more memory would bring no more samples a second"
                              : "more memory would save no time");
    }
  }
  return lines;
}

}  // namespace shardfit::report
