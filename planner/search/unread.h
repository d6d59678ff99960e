#pragma once
// Files beside a job that were given for nothing, or are not what they seem.

#include <string>

#include "search/plan.h"

namespace shardfit::search {

/// "" where the prices were read today or before.
std::string future_prices(const spec::PriceSpec& prices);

/// Warnings, at the first option, for device profiles that are no option's device.
void warn_of_unused_profiles(Plan& plan);

}  // namespace shardfit::search
