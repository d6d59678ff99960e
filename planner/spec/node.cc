#include "spec/node.h"

#include "base/format.h"

namespace shardfit::spec {
namespace {

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (text == word) return true;
  }
  return false;
}

bool is_decimal(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The shape of a real number, however large its exponent.
bool is_real(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  if (is_one_of(text, {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"})) return true;
  const std::size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos && !is_decimal(text.substr(exponent + 1))) return false;
  std::string_view mantissa = text.substr(0, exponent);
  const std::size_t point = mantissa.find('.');
  const std::string_view whole = mantissa.substr(0, point);
  const std::string_view fraction =
      point == std::string_view::npos ? "" : mantissa.substr(point + 1);
  if (whole.empty() && fraction.empty()) return false;
  const auto digits = [](std::string_view part) {
    return part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return digits(whole) && digits(fraction);
}

}  // namespace

const Node* Node::child(std::string_view name) const {
  for (const Node& node : children) {
    if (node.key == name) return &node;
  }
  return nullptr;
}

Kind classify(std::string_view text) {
  // Most words begin with a letter that no number, null or boolean begins with.
  constexpr std::string_view others = "nNtTfF~.+-0123456789";
  if (!text.empty() && others.find(text.front()) == std::string_view::npos) return Kind::string;
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return Kind::null;
  if (is_one_of(text, {"true", "True", "TRUE", "false", "False", "FALSE"})) return Kind::boolean;
  if (is_decimal(text)) return Kind::integer;
  if (is_real(text)) return Kind::real;
  return Kind::string;
}

Node word(std::string text, Location where) {
  Node node;
  node.kind = text.empty() ? Kind::string : classify(text);
  node.untyped = true;
  node.text = std::move(text);
  node.where = std::move(where);
  return node;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Kind::null:
      return "nothing";
    case Kind::boolean:
      return node.text;
    case Kind::integer:
    case Kind::real:
      return "the number " + quoted(node.text);
    case Kind::string:
      return "the text " + quoted(node.text);
    case Kind::list:
      return node.children.empty() ? "an empty list" : "a list";
    case Kind::map:
      return node.children.empty() ? "an empty map" : "a map";
    case Kind::faulty:
      break;
  }
  return "a faulty value";
}

}  // namespace shardfit::spec
