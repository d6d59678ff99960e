#include "search/unread.h"

#include <algorithm>
#include <array>
#include <ctime>

namespace shardfit::search {
namespace {

/// The day on which it is the latest anywhere, as YYYY-MM-DD.
std::string latest_day() {
  constexpr std::time_t hours_ahead = 14;  // of UTC, on the Line Islands
  const std::time_t now = std::time(nullptr) + hours_ahead * 3600;
  std::tm day{};
  gmtime_r(&now, &day);
  std::array<char, 11> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &day);
  return text.data();
}

}  // namespace

std::string future_prices(const spec::PriceSpec& prices) {
  if (prices.date <= latest_day()) return "";
  return "the prices are of " + prices.date + ", a day that has not come yet";
}

void warn_of_unused_profiles(Plan& plan) {
  for (const spec::Setting<std::string>& profile : plan.spec->device_profiles) {
    const std::string file = spec::resolve_beside(profile);
    const auto& options = plan.spec->options;
    const bool used = std::any_of(options.begin(), options.end(), [&](const auto& option) {
      const auto& source = option.cluster.device.where.source;
      return source && source->name == file;
    });
    if (used) continue;
    plan.options.front().warnings.push_back("device profile " + profile.value +
                                            " changes nothing: no option is of its device");
  }
}

}  // namespace shardfit::search
