#pragma once
// Lists in one word: "7,9,8".

#include <string_view>
#include <vector>

namespace shardfit {

/// The pieces of a text between its commas, empty ones too, as views of it: one more than it has
/// commas.
std::vector<std::string_view> comma_list(std::string_view text);

}  // namespace shardfit
