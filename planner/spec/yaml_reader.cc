// The only file that includes libyaml. Its events are used, never its document tree: events carry
// places, keep quoted text apart from plain words, and expand no alias. It reads about five times
// as fast as yaml-cpp (docs/performance.md).

#include <yaml.h>

#include <algorithm>
#include <array>

#include "spec/formats.h"
#include "spec/node_builder.h"

namespace shardfit::spec {
namespace {

/// Byte offsets of libyaml's marks, which count lines and, within a line, characters. Marks that
/// ascend cost one pass over the text in all.
class Places {
 public:
  explicit Places(std::string_view text) : text_(text) {
    // Line breaks as libyaml counts them (yaml_private.h, IS_BREAK_AT).
    for (std::size_t at = text.find_first_of(breaks); at != std::string_view::npos;
         at = text.find_first_of(breaks, at)) {
      const std::size_t length = break_length(at);
      at += std::max<std::size_t>(length, 1);
      if (length > 0) lines_.push_back(at);
    }
  }

  std::size_t offset(const yaml_mark_t& mark) {
    const std::size_t line = std::min(mark.line, lines_.size() - 1);
    if (line != line_ || mark.column < column_) {
      line_ = line;
      column_ = 0;
      at_ = lines_[line];
    }
    for (; column_ < mark.column && at_ < text_.size(); ++column_) {
      do ++at_;
      while (at_ < text_.size() && (static_cast<unsigned char>(text_[at_]) & 0xC0U) == 0x80);
    }
    return at_;
  }

 private:
  static constexpr std::string_view breaks = "\n\r\xC2\xE2";

  /// Length of the line break at `at`; 0 where there is none.
  std::size_t break_length(std::size_t at) const {
    const std::string_view rest = text_.substr(at);
    if (rest[0] == '\n') return 1;
    if (rest[0] == '\r') return rest.starts_with("\r\n") ? 2 : 1;
    if (rest.starts_with("\xC2\x85")) return 2;                                           // NEL
    return rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9") ? 3 : 0;  // LS, PS
  }

  std::string_view text_;
  std::vector<std::size_t> lines_{0};
  std::size_t line_ = 0, column_ = 0, at_ = 0;  // of the mark last asked for
};

/// One event, freed at the end of its scope.
class Event {
 public:
  ~Event() { yaml_event_delete(&event_); }
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  yaml_event_t* get() { return &event_; }
  yaml_event_t* operator->() { return &event_; }

 private:
  yaml_event_t event_{};
};

class Reader {
 public:
  Reader(const SourcePtr& source, Diagnostics& faults)
      : source_(source), faults_(faults), builder_(source, faults), places_(source->text) {
    if (!yaml_parser_initialize(&parser_)) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(
        &parser_, reinterpret_cast<const unsigned char*>(source->text.data()), source->text.size());
  }
  ~Reader() { yaml_parser_delete(&parser_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Node read() {
    bool more = true;
    while (more) {
      Event event;
      if (!yaml_parser_parse(&parser_, event.get())) fail();
      more = take(event);
    }
    if (builder_.empty()) throw InputError({source_, 0, 0}, "holds no data");
    return builder_.take();
  }

 private:
  /// False at the end of the text.
  bool take(Event& event) {
    const std::size_t at = places_.offset(event->start_mark);
    switch (event->type) {
      case YAML_STREAM_END_EVENT:
        return false;
      case YAML_DOCUMENT_START_EVENT:
        if (!builder_.empty())
          throw InputError({source_, at, 1}, "a second document; one file holds one");
        break;
      case YAML_ALIAS_EVENT:
        faults_.error({source_, at, word_length(at)}, "YAML aliases are not supported",
                      {"write the value out where it is used"});
        builder_.scalar(Kind::faulty, "*", at, 1);
        break;
      case YAML_SCALAR_EVENT:
        scalar(at, event);
        break;
      case YAML_SEQUENCE_START_EVENT:
        check(at, event->data.sequence_start.anchor, event->data.sequence_start.tag);
        builder_.begin(Kind::list, at);
        break;
      case YAML_MAPPING_START_EVENT:
        check(at, event->data.mapping_start.anchor, event->data.mapping_start.tag);
        builder_.begin(Kind::map, at);
        break;
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        builder_.end();
        break;
      default:
        break;
    }
    return true;
  }

  void scalar(std::size_t at, Event& event) {
    const auto& data = event->data.scalar;
    check(at, data.anchor, data.tag);
    const std::string_view value(reinterpret_cast<const char*>(data.value), data.length);
    const bool is_plain = data.style == YAML_PLAIN_SCALAR_STYLE;
    if (builder_.at_key() && is_plain && value == "<<") {
      faults_.error({source_, at, 2}, "YAML merge keys are not supported",
                    {"write the keys out where they are used"});
    }
    const bool one_line = event->end_mark.line == event->start_mark.line;
    const std::size_t length = one_line ? places_.offset(event->end_mark) - at : 1;
    const Kind kind = is_plain ? classify(value) : Kind::string;
    builder_.scalar(kind, value, at, std::max<std::size_t>(length, 1));
  }

  void check(std::size_t at, const yaml_char_t* anchor, const yaml_char_t* tag) {
    if (anchor) {
      faults_.error({source_, at, 1}, "YAML anchors are not supported",
                    {"write the value out where it is used"});
    }
    if (tag) {
      faults_.error({source_, at, 1},
                    "YAML tags are not supported: " + quoted(reinterpret_cast<const char*>(tag)));
    }
  }

  std::size_t word_length(std::size_t at) const {
    const std::size_t end = source_->text.find_first_of(" \t\r\n,]}", at);
    return std::min(end, source_->text.size()) - at;
  }

  [[noreturn]] void fail();

  SourcePtr source_;
  Diagnostics& faults_;
  NodeBuilder builder_;
  Places places_;
  yaml_parser_t parser_{};
};

/// libyaml's complaint in the words of somebody who writes YAML.
std::string plain_words(const yaml_parser_t& parser) {
  struct Words {
    std::string_view problem, context, ours;
  };
  constexpr std::array<Words, 9> words{{
      {"did not find expected ',' or ']'", "", "a '[' is never closed, or a ',' is missing"},
      {"did not find expected ',' or '}'", "", "a '{' is never closed, or a ',' is missing"},
      {"found unexpected end of stream", "while scanning a quoted scalar",
       "a quote is never closed"},
      {"mapping values are not allowed in this context", "", "a key and its ':' cannot stand here"},
      {"found character that cannot start any token", "",
       "a value cannot begin with this character; put the text in quotes"},
      {"did not find expected key", "", "a key, or the end of the map, was expected here"},
      {"did not find expected '-' indicator", "",
       "a '-', or the end of the list, was expected here"},
      {"could not find expected ':'", "", "a key needs a ':' after it"},
      {"did not find expected <document start>", "", "text after the end of the data"},
  }};
  const std::string_view problem = parser.problem ? parser.problem : "unknown fault";
  const std::string_view context = parser.context ? parser.context : "";
  for (const Words& row : words) {
    if (problem == row.problem && (row.context.empty() || row.context == context)) {
      return std::string(row.ours);
    }
  }
  return std::string(problem) + (context.empty() ? "" : " " + std::string(context));
}

/// A word of help where a tab indents the line of a fault.
std::vector<std::string> tab_hint(std::string_view text, std::size_t at) {
  const std::size_t newline = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  const std::size_t word = text.find_first_not_of(" \t", start);
  if (text.substr(start, word - start).find('\t') == std::string_view::npos) return {};
  return {"YAML is indented with spaces; this line begins with a tab"};
}

void Reader::fail() {
  if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
  const std::size_t at = parser_.error == YAML_READER_ERROR
                             ? std::min(parser_.problem_offset, source_->text.size())
                             : places_.offset(parser_.problem_mark);
  std::vector<std::string> notes = tab_hint(source_->text, at);
  if (notes.empty() && builder_.done()) {
    notes.push_back("is it indented as the lines above?");
  }
  throw InputError({source_, at, 1}, "not YAML: " + plain_words(parser_), std::move(notes));
}

}  // namespace

Node read_any_yaml(const SourcePtr& source, Diagnostics& faults) {
  return Reader(source, faults).read();
}

Node read_yaml(const SourcePtr& source, Diagnostics& faults) {
  if (std::optional<Node> root = read_plain_yaml(source, faults)) return *std::move(root);
  return read_any_yaml(source, faults);
}

}  // namespace shardfit::spec
