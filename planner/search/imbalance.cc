// One card that holds or works much more than another, and what the difference is made of.

#include <algorithm>

#include "base/format.h"
#include "search/plan.h"

namespace shardfit::search {
namespace {

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }
std::string gpu(const Gpu& one) { return "GPU " + std::to_string(one.index); }

/// A category of which one GPU holds much more than an even share, though its sum may hide it.
constexpr std::int64_t worth_naming = 256 << 20;

void uneven_categories(const Option& option, double threshold, std::vector<std::string>& warnings) {
  const auto count = static_cast<std::int64_t>(option.gpus.size());
  for (int c = 0; c < category_count; ++c) {
    const auto i = static_cast<std::size_t>(c);
    std::int64_t sum = 0;
    const Gpu* most = &option.gpus.front();
    for (const Gpu& one : option.gpus) {
      sum += one.peak.allocated_by[i];
      if (one.peak.allocated_by[i] > most->peak.allocated_by[i]) most = &one;
    }
    const std::int64_t held = most->peak.allocated_by[i];
    const std::int64_t even = sum / count;
    const double ratio =
        static_cast<double>(held) / static_cast<double>(std::max<std::int64_t>(1, even));
    if (held - even < worth_naming || ratio < 1 + threshold) continue;
    warnings.push_back("imbalance: " + gpu(*most) + " holds " + format_number(ratio) +
                       " times an even share of the " + category_name(static_cast<Category>(c)) +
                       ", " + size(held) + " instead of " + size(even));
  }
}

std::string by_category(const Gpu& more, const Gpu& less) {
  struct Difference {
    std::string name;
    std::int64_t bytes;
  };
  std::vector<Difference> differences;
  for (int c = 0; c < category_count; ++c) {
    const auto i = static_cast<std::size_t>(c);
    const std::int64_t bytes = more.peak.allocated_by[i] - less.peak.allocated_by[i];
    if (bytes > 0) differences.push_back({category_name(static_cast<Category>(c)), bytes});
  }
  std::stable_sort(differences.begin(), differences.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, differences.size()); ++i) {
    text += (i > 0 ? ", " : "") + differences[i].name + " " + size(differences[i].bytes);
  }
  return text;
}

}  // namespace

std::vector<std::string> find_imbalance(const Option& option, double threshold) {
  std::vector<std::string> warnings;
  if (option.gpus.size() < 2) return warnings;
  const auto by_need = [](const Gpu& a, const Gpu& b) {
    return a.judgement.needed < b.judgement.needed;
  };
  const auto [least, most] = std::minmax_element(option.gpus.begin(), option.gpus.end(), by_need);
  const auto need = [](const Gpu& one) { return static_cast<double>(one.judgement.needed); };
  if (need(*most) > need(*least) * (1 + threshold)) {
    const std::string causes = by_category(*most, *least);
    warnings.push_back("imbalance: " + gpu(*most) + " (" + most->role + ") needs " +
                       format_number(need(*most) / need(*least)) + " times what " + gpu(*least) +
                       " needs, " + size(most->judgement.needed) + " against " +
                       size(least->judgement.needed) +
                       (causes.empty() ? "" : "; more of " + causes));
  }
  uneven_categories(option, threshold, warnings);
  if (!option.timing) return warnings;
  const auto& busy = option.timing->busy_seconds;
  const auto [idle, full] = std::minmax_element(busy.begin(), busy.end());
  if (*full > *idle * (1 + threshold)) {
    const auto index = [&](auto at) { return std::to_string(at - busy.begin()); };
    warnings.push_back("imbalance: GPU " + index(full) + " computes " +
                       format_seconds(Seconds{*full}) + " of a step of " +
                       format_seconds(Seconds{option.timing->step_seconds}) + ", GPU " +
                       index(idle) + " " + format_seconds(Seconds{*idle}));
  }
  return warnings;
}

}  // namespace shardfit::search
