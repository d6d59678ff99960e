#include "base/diagnostic.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <map>

namespace shardfit {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

std::size_t line_start(std::string_view text, std::size_t offset) {
  if (offset == 0) return 0;
  const auto at = text.rfind('\n', offset - 1);
  return at == std::string_view::npos ? 0 : at + 1;
}

/// The text of a line made printable: tabs become a space, other control characters '?'.
std::string printable(std::string_view line) {
  std::string out(line);
  for (char& c : out) {
    if (c == '\t') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return out;
}

constexpr std::size_t widest_excerpt = 76;  // with the indent of four: 80 columns
constexpr std::size_t context_before = 24;  // kept before the caret when a line is cut

/// The source line and the caret line under it, each indented by four; empty for an empty line.
std::string excerpt(const Location& where) {
  const std::string_view text = where.source->text;
  const std::size_t offset = std::min(where.offset, text.size());
  std::size_t begin = line_start(text, offset);
  std::size_t end = std::min(text.find('\n', offset), text.size());
  if (end > begin && text[end - 1] == '\r') --end;
  while (begin < offset && begin < end && (text[begin] == ' ' || text[begin] == '\t')) ++begin;
  if (begin >= end) return "";

  std::string before;
  std::string after;
  const bool fits = end - begin <= widest_excerpt;
  if (!fits && offset - begin > widest_excerpt - context_before) {
    begin = offset - context_before;
    while (begin < offset && continues_character(text[begin])) ++begin;
    before = "...";
  }
  if (!fits && end - begin > widest_excerpt - 6) {
    end = begin + widest_excerpt - 6;
    while (end > offset && end < text.size() && continues_character(text[end])) --end;
    after = "...";
  }
  end = std::max(end, offset);
  const std::string_view shown = text.substr(begin, end - begin);
  const std::size_t marked_bytes = std::min(std::max<std::size_t>(where.length, 1), end - offset);
  const std::size_t marked =
      std::max<std::size_t>(characters(text.substr(offset, marked_bytes)), 1);
  const std::size_t indent = before.size() + characters(text.substr(begin, offset - begin));
  return "    " + before + printable(shown) + after + "\n    " + std::string(indent, ' ') + "^" +
         std::string(marked - 1, '~') + "\n";
}

/// A note, indented by two and broken at spaces to stay within 80 columns; further lines by four.
std::string note_lines(const std::string& note) {
  constexpr std::size_t widest = 80;
  std::string out;
  std::string line = "  ";
  std::size_t at = 0;
  while (at < note.size()) {
    const std::size_t end = std::min(note.find(' ', at), note.size());
    const bool first = line.find_first_not_of(' ') == std::string::npos;
    if (!first && line.size() + 1 + (end - at) > widest) {
      out += line + "\n";
      line = "    ";
    } else if (!first) {
      line += ' ';
    }
    line.append(note, at, end - at);
    at = end + 1;
  }
  return out + line + "\n";
}

/// Lower case, with one spelling of the separators.
std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (c == '-' || c == ' ') c = '_';
  }
  return out;
}

std::string rendered(const std::vector<Diagnostic>& diagnostics, std::size_t left_out) {
  std::string out;
  for (const Diagnostic& d : diagnostics) out += render(d);
  if (left_out > 0) {
    out += "and " + std::to_string(left_out) + (left_out == 1 ? " more error\n" : " more errors\n");
  }
  return out;
}

}  // namespace

int Location::line() const {
  if (!source) return 0;
  const auto end =
      source->text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, source->text.size()));
  return 1 + static_cast<int>(std::count(source->text.begin(), end, '\n'));
}

int Location::column() const {
  if (!source) return 0;
  const std::string_view text = source->text;
  const std::size_t at = std::min(offset, text.size());
  const std::size_t begin = line_start(text, at);
  return 1 + static_cast<int>(characters(text.substr(begin, at - begin)));
}

std::string Location::text() const {
  if (!source) return "";
  return source->name + ":" + std::to_string(line()) + ":" + std::to_string(column());
}

Location whole_file(std::string name) {
  return {std::make_shared<const Source>(Source{std::move(name), ""}), 0, 0};
}

std::string render(const Diagnostic& diagnostic) {
  std::string out;
  const Location& where = diagnostic.where;
  if (where.known()) {
    out = where.source->text.empty() ? where.source->name : where.text();
    out += ": ";
  }
  out += "error: " + diagnostic.message + "\n";
  if (where.known()) out += excerpt(where);
  for (const std::string& note : diagnostic.notes) out += note_lines(note);
  return out;
}

InputError::InputError(std::vector<Diagnostic> diagnostics, std::size_t left_out)
    : std::runtime_error(rendered(diagnostics, left_out)), diagnostics_(std::move(diagnostics)) {}

InputError::InputError(Location where, std::string message, std::vector<std::string> notes)
    : InputError(
          std::vector<Diagnostic>{{std::move(where), std::move(message), std::move(notes)}}) {}

void Diagnostics::error(Location where, std::string message, std::vector<std::string> notes) {
  found_.push_back({std::move(where), std::move(message), std::move(notes)});
}

void Diagnostics::add(const Diagnostics& others) {
  found_.insert(found_.end(), others.found_.begin(), others.found_.end());
}

void Diagnostics::throw_if_any() const {
  if (found_.empty()) return;
  std::map<const Source*, std::size_t> rank;
  for (const Diagnostic& d : found_) rank.emplace(d.where.source.get(), rank.size());
  std::vector<Diagnostic> sorted = found_;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Diagnostic& a, const Diagnostic& b) {
    const std::size_t ra = rank.at(a.where.source.get());
    const std::size_t rb = rank.at(b.where.source.get());
    return ra != rb ? ra < rb : a.where.offset < b.where.offset;
  });
  // A value read for several options is complained of once.
  const auto same = [](const Diagnostic& a, const Diagnostic& b) {
    return a.where.source == b.where.source && a.where.offset == b.where.offset &&
           a.message == b.message;
  };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), same), sorted.end());
  const std::size_t left_out = sorted.size() > most_shown ? sorted.size() - most_shown : 0;
  sorted.resize(sorted.size() - left_out);
  throw InputError(std::move(sorted), left_out);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment; three rows are kept because a swap looks two rows back.
  std::array<std::vector<std::size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i + 2) % 3];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], rows[(i + 1) % 3][j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

namespace {

std::size_t common_start(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

std::string closest(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t longest_word = 64;  // nothing longer is a slip of the finger
  if (word.empty() || word.size() > longest_word) return "";
  constexpr std::size_t least_start = 3;
  const std::string target = folded(word);
  // A name's first part: 'h100' means one such as 'h100-sxm', not 'h200'.
  for (const std::string& candidate : candidates) {
    if (target.size() >= least_start && folded(candidate).starts_with(target + "_")) {
      return candidate;
    }
  }
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(target, folded(candidate));
    // Of two as near, the one that begins like the word: 'llama-3-8b' means 'llama-3.1-8b', not
    // 'llama-2-7b'; then the one as long: 'h20O' means 'h200', not 'h20'.
    const std::size_t begins = common_start(target, folded(candidate));
    const std::size_t best_begins = common_start(target, folded(best));
    const bool as_long = candidate.size() == word.size() && best.size() != word.size();
    const bool nearer = begins > best_begins || (begins == best_begins && as_long);
    if (distance < best_distance || (distance == best_distance && !best.empty() && nearer)) {
      best_distance = distance;
      best = candidate;
    }
  }
  // Half a name of some length: 'adam' means 'adamw-fused', the first that goes on from it.
  for (const std::string& candidate : candidates) {
    if (best.empty() && target.size() >= least_start && folded(candidate).starts_with(target)) {
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> suggest(std::string_view word, std::span<const std::string> candidates) {
  std::vector<std::string> notes;
  if (candidates.empty()) return notes;
  notes.push_back((candidates.size() == 1 ? "expected: " : "expected one of: ") + join(candidates));
  const std::string near = closest(word, candidates);
  if (!near.empty()) notes.push_back("did you mean '" + near + "'?");
  return notes;
}

std::string join(std::span<const std::string> words, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += separator;
    out += words[i];
  }
  return out;
}

std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string out = "'";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i >= longest && !continues_character(text[i])) return out + "...'";
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      std::array<char, 8> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", c);
      out += hex.data();
    } else {
      out += text[i];
    }
  }
  return out + "'";
}

}  // namespace shardfit
