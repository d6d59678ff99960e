#pragma once
// Line-wise reading of plain text formats, with the place of every piece.

#include <optional>
#include <string_view>
#include <vector>

#include "base/diagnostic.h"

namespace shardfit::partition {

/// A piece of the source's text and where it starts.
struct Piece {
  std::string_view text;
  std::size_t offset = 0;
};

/// Lines without their ends ("\n" or "\r\n"); a last line without an end counts.
std::vector<Piece> lines_of(std::string_view text);

/// Splits at every occurrence of `separator`; pieces keep their blanks.
std::vector<Piece> split(Piece piece, std::string_view separator);

/// Without leading and trailing blanks and tabs.
Piece trimmed(Piece piece);

/// The whole piece as a finite number, as a whole number; nothing if it is anything else.
std::optional<double> parse_number(std::string_view text);
std::optional<std::int64_t> parse_whole(std::string_view text);

/// Throws InputError at the piece.
[[noreturn]] void fail_at(const SourcePtr& source, Piece where, std::string message,
                          std::vector<std::string> notes = {});

}  // namespace shardfit::partition
