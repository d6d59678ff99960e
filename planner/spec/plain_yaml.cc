// Reads the YAML that people write: maps and lists by indentation or in brackets, words and quoted
// texts on one line each, comments. Whatever else YAML knows, and whatever is wrong, is left to
// libyaml (yaml_reader.cc), which then reads the text from its start; so faults are libyaml's, and
// what is read here must be what libyaml reads (tests/plain_yaml_test.cc holds the two together).
// Rules are those of libyaml 0.2.5, src/scanner.c and src/parser.c.

#include <algorithm>

#include "base/utf8.h"
#include "spec/formats.h"
#include "spec/node_builder.h"

namespace shardfit::spec {
namespace {

/// Thrown where libyaml has to read.
struct Unusual {};

/// A simple key of YAML has at most 1024 characters up to its ':'.
constexpr std::size_t longest_key = 1000;

bool is_plain_ascii(unsigned char c) { return (c >= 0x20 && c < 0x7F) || c == '\n'; }

/// A character beyond ASCII that is no more than that: no line break (NEL, LS, PS), no byte order
/// mark, nothing that libyaml refuses (src/reader.c).
bool is_usual_character(std::string_view c) {
  if (c.empty() || (c[0] == '\xC2' && static_cast<unsigned char>(c[1]) < 0xA0)) return false;
  for (const char* no :
       {"\xE2\x80\xA8", "\xE2\x80\xA9", "\xEF\xBB\xBF", "\xEF\xBF\xBE", "\xEF\xBF\xBF"}) {
    if (c == no) return false;
  }
  return true;
}

/// Control characters are unusual, tabs and carriage returns among them.
bool has_usual_characters(std::string_view text) {
  constexpr std::size_t piece = 256;
  for (std::size_t start = 0; start < text.size();) {
    bool usual = true;
    const std::string_view part = text.substr(start, piece);
    for (const char c : part) usual &= is_plain_ascii(static_cast<unsigned char>(c));
    const std::size_t end = start + part.size();
    if (usual) start = end;
    while (start < end) {
      const std::size_t length = utf8_length(text, start);
      if (length == 1 ? !is_plain_ascii(static_cast<unsigned char>(text[start]))
                      : !is_usual_character(text.substr(start, length))) {
        return false;
      }
      start += length;
    }
  }
  return true;
}

bool has_document_marks(std::string_view text) {
  return text.starts_with("---") || text.starts_with("...") || text.starts_with("%") ||
         text.find("\n---") != std::string_view::npos ||
         text.find("\n...") != std::string_view::npos || text.find("\n%") != std::string_view::npos;
}

class PlainReader {
 public:
  PlainReader(const SourcePtr& source, Diagnostics& faults)
      : text_(source->text), builder_(source, faults) {}

  Node read() {
    next_line();
    if (at_ == text_.size()) throw Unusual();
    block_node();
    if (at_ != text_.size()) throw Unusual();
    return builder_.take();
  }

 private:
  static constexpr char nothing = '\n';  // stands for the end of the text too

  char here(std::size_t further = 0) const {
    return at_ + further < text_.size() ? text_[at_ + further] : nothing;
  }
  static bool blank(char c) { return c == ' ' || c == '\n'; }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  std::size_t column() const { return at_ - line_; }
  bool at_dash() const { return here() == '-' && blank(here(1)); }

  /// Over the rest of a line, blank or a comment, its break left out.
  void end_line() {
    skip_spaces();
    if (here() == '#') {
      if (at_ > line_ && text_[at_ - 1] != ' ') throw Unusual();
      at_ = std::min(text_.find('\n', at_), text_.size());
    }
    if (here() != '\n') throw Unusual();
  }

  /// To the first character of the next line that says something, or to the end of the text. Called
  /// at the start of the text, or where a line ends.
  void next_line() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') ++at_;
      line_ = at_;
      skip_spaces();
      if (here() != '\n' && here() != '#') return;
      end_line();
    }
  }

  // --- scalars ---

  struct Word {
    std::size_t start = 0, end = 0;  // with quotes
    bool quoted = false;
  };

  Word quoted_word(char quote) {
    const std::size_t end = text_.find_first_of(quote == '"' ? "\"\\\n" : "'\n", at_ + 1);
    if (end == std::string_view::npos || text_[end] != quote) throw Unusual();
    const Word word{at_, end + 1, true};
    at_ = end + 1;
    if (quote == '\'' && here() == '\'') throw Unusual();  // an escaped quote
    return word;
  }

  /// In brackets, ',' and brackets end a word.
  Word plain_word(bool in_brackets) {
    constexpr std::string_view indicators = "?:,[]{}#&*!|>'\"%@`";
    if (indicators.find(here()) != std::string_view::npos || at_dash()) throw Unusual();
    Word word{at_, at_, false};
    for (;;) {
      char c = here();
      if (c == '#') break;  // after a space
      bool ends = false;
      const std::size_t part = at_;
      for (; !blank(c); c = here()) {
        const char next = here(1);
        if (c == ':') {
          ends = blank(next);
          constexpr std::string_view brackets = ",?[]{}";
          if (in_brackets && brackets.find(next) != std::string_view::npos) throw Unusual();
        } else if (in_brackets) {
          if (c == '?') throw Unusual();
          ends = c == ',' || c == '[' || c == ']' || c == '{' || c == '}';
        }
        if (ends) break;
        ++at_;
      }
      if (at_ > part) word.end = at_;
      if (ends || c == '\n') break;
      skip_spaces();
      if (here() == '\n') break;
    }
    at_ = word.end;
    return word;
  }

  Word any_word(bool in_brackets) {
    const char c = here();
    return c == '"' || c == '\'' ? quoted_word(c) : plain_word(in_brackets);
  }

  void put(const Word& word) {
    const std::size_t length = word.end - word.start;
    if (word.quoted) {
      builder_.scalar(Kind::string, text_.substr(word.start + 1, length - 2), word.start, length);
    } else {
      const std::string_view text = text_.substr(word.start, length);
      if (builder_.at_key() && text == "<<") throw Unusual();
      const Kind kind = builder_.at_key() ? Kind::string : classify(text);
      builder_.scalar(kind, text, word.start, length);
    }
  }

  /// The ':' that makes a word a key stands next, spaces aside.
  bool at_colon(const Word& word) {
    skip_spaces();
    return here() == ':' && at_ - word.start < longest_key;
  }

  // --- by indentation ---

  /// A value that begins a line, or stands behind a '-': a list, a map or brackets, no word.
  void block_node() {
    if (at_dash()) return block_list(false);
    if (here() == '[' || here() == '{') {
      bracket_node();
      end_line();
      return next_line();
    }
    block_map();
  }

  void block_map() {
    const std::size_t indent = column();
    builder_.begin(Kind::map, at_);
    do {
      const Word key = any_word(false);
      if (!at_colon(key) || !blank(here(1))) throw Unusual();
      put(key);
      ++at_;
      skip_spaces();
      if (here() == '\n' || here() == '#') {
        end_line();
        next_line();
        if (column() == indent && at_dash()) {
          block_list(true);
        } else {
          if (column() <= indent || at_ == text_.size()) throw Unusual();
          block_node();
        }
      } else {
        value_on_line();
      }
      if (at_ == text_.size() || column() < indent) break;
      if (column() > indent) throw Unusual();
    } while (true);
    builder_.end();
  }

  /// A word or brackets to the end of the line.
  void value_on_line() {
    if (here() == '[' || here() == '{') {
      bracket_node();
    } else {
      put(any_word(false));
    }
    end_line();
    next_line();
  }

  /// `level`: it stands in the column of the keys of the map that it is in.
  void block_list(bool level) {
    const std::size_t indent = column();
    builder_.begin(Kind::list, at_);
    for (;;) {
      ++at_;
      skip_spaces();
      if (here() == '\n' || here() == '#') {
        end_line();
        next_line();
        if (column() <= indent || at_ == text_.size()) throw Unusual();
        block_node();
      } else {
        list_item();
      }
      if (at_ == text_.size() || column() < indent) break;
      if (column() > indent) throw Unusual();
      if (at_dash()) continue;
      if (level) break;
      throw Unusual();
    }
    builder_.end();
  }

  /// What stands behind a '-' on its line.
  void list_item() {
    if (at_dash()) return block_list(false);
    if (here() == '[' || here() == '{') return value_on_line();
    const std::size_t start = at_;
    const Word word = any_word(false);
    const bool key = at_colon(word);
    at_ = start;
    if (key) return block_map();
    value_on_line();
  }

  // --- in brackets ---

  /// Over spaces, line breaks and comments.
  void skip_between() {
    for (;;) {
      skip_spaces();
      if (at_ == text_.size()) throw Unusual();
      if (here() != '\n' && here() != '#') return;
      end_line();
      next_line();
    }
  }

  void bracket_node() {
    if (here() == '[') return bracket_list();
    if (here() == '{') return bracket_map();
    put(any_word(true));
  }

  /// Past the ',' after a value; false at the closing bracket.
  bool more_in(char close) {
    skip_between();
    if (here() == ',') {
      ++at_;
      skip_between();
    } else if (here() != close) {
      throw Unusual();
    }
    return here() != close;
  }

  void bracket_list() {
    builder_.begin(Kind::list, at_++);
    skip_between();
    if (here() != ']') {
      do bracket_node();
      while (more_in(']'));
    }
    ++at_;
    builder_.end();
  }

  void bracket_map() {
    builder_.begin(Kind::map, at_++);
    skip_between();
    if (here() != '}') {
      do {
        const Word key = any_word(true);
        if (!at_colon(key)) throw Unusual();
        put(key);
        ++at_;
        skip_between();
        if (here() == ',' || here() == '}') throw Unusual();  // no value
        bracket_node();
      } while (more_in('}'));
    }
    ++at_;
    builder_.end();
  }

  std::string_view text_;
  NodeBuilder builder_;
  std::size_t at_ = 0;
  std::size_t line_ = 0;  // where the line began
};

}  // namespace

std::optional<Node> read_plain_yaml(const SourcePtr& source, Diagnostics& faults) {
  if (!has_usual_characters(source->text) || has_document_marks(source->text)) return {};
  Diagnostics own;
  try {
    Node root = PlainReader(source, own).read();
    faults.add(own);
    return root;
  } catch (const Unusual&) {
    return {};
  } catch (const InputError&) {
    return {};  // past a limit, unless libyaml has another complaint before it
  }
}

}  // namespace shardfit::spec
