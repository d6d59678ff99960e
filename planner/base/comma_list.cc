#include "base/comma_list.h"

namespace shardfit {

std::vector<std::string_view> comma_list(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (true) {
    const std::size_t comma = text.find(',');
    pieces.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return pieces;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace shardfit
