#pragma once
// Characters of UTF-8 texts.

#include <cstddef>
#include <string_view>

namespace shardfit {

/// Length of the character at `at`, or 0 where there is none (RFC 3629: no surrogates, no overlong
/// forms, nothing past U+10FFFF).
std::size_t utf8_length(std::string_view text, std::size_t at);

/// Where the first byte stands that begins no character; the text's size where all do.
std::size_t end_of_utf8(std::string_view text);

}  // namespace shardfit
