#include "partition/instances/text_lines.h"

#include <charconv>
#include <cmath>

namespace shardfit::partition {

std::vector<Piece> lines_of(std::string_view text) {
  std::vector<Piece> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find('\n', at);
    std::size_t next = end == std::string_view::npos ? text.size() : end + 1;
    std::string_view line = text.substr(at, (end == std::string_view::npos ? next : end) - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    out.push_back({line, at});
    at = next;
  }
  return out;
}

std::vector<Piece> split(Piece piece, std::string_view separator) {
  std::vector<Piece> out;
  std::size_t at = 0;
  for (;;) {
    std::size_t end = piece.text.find(separator, at);
    if (end == std::string_view::npos) {
      out.push_back({piece.text.substr(at), piece.offset + at});
      return out;
    }
    out.push_back({piece.text.substr(at, end - at), piece.offset + at});
    at = end + separator.size();
  }
}

Piece trimmed(Piece piece) {
  auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!piece.text.empty() && blank(piece.text.front())) {
    piece.text.remove_prefix(1);
    ++piece.offset;
  }
  while (!piece.text.empty() && blank(piece.text.back())) piece.text.remove_suffix(1);
  return piece;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_whole(std::string_view text) {
  std::int64_t value = 0;
  auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

void fail_at(const SourcePtr& source, Piece where, std::string message,
             std::vector<std::string> notes) {
  throw InputError({source, where.offset, where.text.size()}, std::move(message), std::move(notes));
}

}  // namespace shardfit::partition
