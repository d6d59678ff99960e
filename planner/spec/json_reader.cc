// JSON through RapidJSON's iterative SAX parser: no recursion on the depth of the text.

#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <algorithm>

#include "spec/formats.h"
#include "spec/node_builder.h"

namespace shardfit::spec {
namespace {

/// Events arrive right after their token was read (just before it for brackets), so each token's
/// start is found by looking back in the text.
class Handler {
 public:
  Handler(const rapidjson::MemoryStream& stream, const SourcePtr& source, Diagnostics& faults)
      : stream_(stream), text_(source->text), builder_(source, faults) {}

  NodeBuilder& builder() { return builder_; }

  bool Null() { return word(Kind::null, 4); }
  bool Bool(bool value) { return word(Kind::boolean, value ? 4 : 5); }
  bool RawNumber(const char*, rapidjson::SizeType, bool) {
    std::size_t start = stream_.Tell();
    while (start > 0 && is_number_character(text_[start - 1])) --start;
    const std::string_view number = text_.substr(start, stream_.Tell() - start);
    const bool integer = number.find_first_not_of("-0123456789") == std::string_view::npos;
    builder_.scalar(integer ? Kind::integer : Kind::real, number, start, number.size());
    return true;
  }
  bool String(const char* value, rapidjson::SizeType length, bool) {
    const std::size_t end = stream_.Tell();
    const std::size_t start = opening_quote(end);
    builder_.scalar(Kind::string, {value, length}, start, end - start);
    return true;
  }
  bool Key(const char* value, rapidjson::SizeType length, bool copy) {
    return String(value, length, copy);
  }
  bool StartObject() { return begin(Kind::map); }
  bool StartArray() { return begin(Kind::list); }
  bool EndObject(rapidjson::SizeType) { return end(); }
  bool EndArray(rapidjson::SizeType) { return end(); }

  // With numbers kept as text these are never called; RapidJSON wants them to exist.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(std::int64_t) { return false; }
  bool Uint64(std::uint64_t) { return false; }
  bool Double(double) { return false; }

 private:
  static bool is_number_character(char c) {
    return std::string_view("0123456789+-.eENaInfity").find(c) != std::string_view::npos;
  }

  /// Where the string that ends before `end` began: inside it every quote follows an odd number of
  /// backslashes, before it none stands.
  std::size_t opening_quote(std::size_t end) const {
    std::size_t at = end - 1;
    while (at > 0) {
      at = text_.rfind('"', at - 1);
      std::size_t slashes = 0;
      while (slashes < at && text_[at - 1 - slashes] == '\\') ++slashes;
      if (slashes % 2 == 0) break;
    }
    return at;
  }

  bool word(Kind kind, std::size_t length) {
    const std::size_t start = stream_.Tell() - length;
    builder_.scalar(kind, text_.substr(start, length), start, length);
    return true;
  }
  bool begin(Kind kind) {
    builder_.begin(kind, stream_.Tell());
    return true;
  }
  bool end() {
    builder_.end();
    return true;
  }

  const rapidjson::MemoryStream& stream_;
  std::string_view text_;
  NodeBuilder builder_;
};

std::string lower_first(std::string text) {
  if (!text.empty() && text.size() > 1 && text[1] >= 'a') text[0] |= 0x20;
  if (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

/// What usually stands behind a parser's complaint at this place.
std::vector<std::string> hints(std::string_view text, std::size_t at) {
  const std::size_t previous = text.find_last_not_of(" \t\r\n", at == 0 ? 0 : at - 1);
  const char here = at < text.size() ? text[at] : '\0';
  if (here == '/' || here == '#') return {"JSON has no comments"};
  if (here == '\'') return {"JSON strings stand in double quotes"};
  if ((here == '}' || here == ']') && previous != std::string_view::npos && previous < at &&
      text[previous] == ',') {
    return {"JSON has no comma after the last element"};
  }
  return {};
}

}  // namespace

Node read_json(const SourcePtr& source, Diagnostics& faults) {
  constexpr unsigned flags = rapidjson::kParseIterativeFlag |
                             rapidjson::kParseNumbersAsStringsFlag |
                             rapidjson::kParseValidateEncodingFlag | rapidjson::kParseNanAndInfFlag;
  rapidjson::MemoryStream stream(source->text.data(), source->text.size());
  Handler handler(stream, source, faults);
  rapidjson::Reader reader;
  const rapidjson::ParseResult result = reader.Parse<flags>(stream, handler);
  if (result.IsError()) {
    const std::size_t at = std::min(result.Offset(), source->text.size());
    throw InputError({source, at, 1},
                     "not JSON: " + lower_first(rapidjson::GetParseError_En(result.Code())),
                     hints(source->text, at));
  }
  return handler.builder().take();
}

}  // namespace shardfit::spec
