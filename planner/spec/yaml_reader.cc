// The only file that includes yaml-cpp. Its event parser is used, never its node graph: events
// carry places, keep quoted text apart from plain words, and expand no alias.

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <istream>
#include <streambuf>

#include "spec/formats.h"
#include "spec/node_builder.h"

namespace shardfit::spec {
namespace {

/// A stream over a text without a copy of it.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // read only: no put area is set
    setg(begin, begin, begin + text.size());
  }
};

class Handler : public YAML::EventHandler {
 public:
  Handler(const SourcePtr& source, Diagnostics& faults)
      : source_(source), faults_(faults), builder_(source, faults) {}

  NodeBuilder& builder() { return builder_; }
  /// Where the document read last begins.
  std::size_t start() const { return start_; }

  void OnDocumentStart(const YAML::Mark& mark) override { start_ = offset(mark); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    scalar(mark, "?", anchor, "");
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    const std::size_t at = offset(mark);
    faults_.error({source_, at, word_length(at)}, "YAML aliases are not supported",
                  {"write the value out where it is used"});
    builder_.scalar(Kind::faulty, "*", at, 1);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    scalar(mark, tag, anchor, value);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    builder_.begin(Kind::list, offset(mark));
  }
  void OnSequenceEnd() override { builder_.end(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    builder_.begin(Kind::map, offset(mark));
  }
  void OnMapEnd() override { builder_.end(); }

 private:
  static constexpr const char* plain = "?";
  static constexpr const char* quoted_tag = "!";

  std::size_t offset(const YAML::Mark& mark) const {
    return mark.pos < 0 ? 0 : std::min(static_cast<std::size_t>(mark.pos), source_->text.size());
  }

  std::size_t word_length(std::size_t at) const {
    const std::size_t end = source_->text.find_first_of(" \t\r\n,]}", at);
    return std::min(end, source_->text.size()) - at;
  }

  /// Bytes a scalar takes in the text, as far as a caret line needs them.
  std::size_t length(std::size_t at, const std::string& value) const {
    const std::string& text = source_->text;
    if (text.compare(at, value.size(), value) == 0) return value.size();
    if (at < text.size() && (text[at] == '"' || text[at] == '\'')) {
      std::size_t end = at + 1;
      while (end < text.size() && text[end] != text[at]) {
        end += text[end] == '\\' && text[at] == '"' ? 2 : 1;
      }
      return std::min(end + 1, text.size()) - at;
    }
    return 1;
  }

  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    const std::size_t at = offset(mark);
    if (anchor != YAML::NullAnchor) {
      faults_.error({source_, at, 1}, "YAML anchors are not supported",
                    {"write the value out where it is used"});
    }
    if (!tag.empty() && tag != plain && tag != quoted_tag) {
      faults_.error({source_, at, 1}, "YAML tags are not supported: " + quoted(tag));
    }
  }

  void scalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
              const std::string& value) {
    check(mark, tag, anchor);
    const std::size_t at = offset(mark);
    const bool is_plain = tag == plain;
    if (builder_.at_key() && is_plain && value == "<<") {
      faults_.error({source_, at, 2}, "YAML merge keys are not supported",
                    {"write the keys out where they are used"});
    }
    builder_.scalar(is_plain ? classify(value) : Kind::string, value, at, length(at, value));
  }

  SourcePtr source_;
  Diagnostics& faults_;
  NodeBuilder builder_;
  std::size_t start_ = 0;
};

/// yaml-cpp's complaint in the words of somebody who writes YAML.
std::string plain_words(const std::string& complaint) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> words{{
      {"end of sequence flow not found", "a '[' is never closed"},
      {"end of map flow not found", "a '{' is never closed"},
      {"illegal EOF in scalar", "a quote is never closed"},
      {"illegal map value", "a key and its ':' cannot stand here"},
      {"unknown token", "a value cannot begin with this character; put the text in quotes"},
      {"end of map not found", "a key, or the end of the map, was expected here"},
  }};
  for (const auto& [theirs, ours] : words) {
    if (complaint == theirs) return std::string(ours);
  }
  return complaint;
}

/// A word of help where a tab indents the line of a fault.
std::vector<std::string> tab_hint(std::string_view text, std::size_t at) {
  const std::size_t newline = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  const std::size_t word = text.find_first_not_of(" \t", start);
  if (text.substr(start, word - start).find('\t') == std::string_view::npos) return {};
  return {"YAML is indented with spaces; this line begins with a tab"};
}

}  // namespace

Node read_yaml(const SourcePtr& source, Diagnostics& faults) {
  ViewBuffer buffer(source->text);
  std::istream stream(&buffer);
  Handler handler(source, faults);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(handler) || handler.builder().empty()) {
      throw InputError({source, 0, 0}, "holds no data");
    }
    Handler rest(source, faults);
    if (parser.HandleNextDocument(rest)) {
      const std::size_t at = std::min(rest.start(), source->text.size());
      const bool marked = source->text.find("\n---") != std::string::npos;
      throw InputError(
          {source, at, 1},
          marked ? "a second document; one file holds one" : "text after the end of the data",
          marked ? std::vector<std::string>{}
                 : std::vector<std::string>{"is it indented as the lines above?"});
    }
  } catch (const YAML::DeepRecursion& error) {
    throw InputError({source, static_cast<std::size_t>(std::max(error.mark.pos, 0)), 1},
                     "lists and maps are nested deeper than " + std::to_string(deepest_nesting));
  } catch (const YAML::Exception& error) {
    const std::size_t at = error.mark.pos < 0 ? 0 : static_cast<std::size_t>(error.mark.pos);
    throw InputError({source, std::min(at, source->text.size()), 1},
                     "not YAML: " + plain_words(error.msg),
                     tab_hint(source->text, std::min(at, source->text.size())));
  }
  return handler.builder().take();
}

}  // namespace shardfit::spec
