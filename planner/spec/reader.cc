#include "spec/reader.h"

#include <algorithm>

#include "base/format.h"

namespace shardfit::spec {
namespace {

/// Reports a value of the wrong kind, unless its fault is known already.
void wrong_kind(const Node& node, std::string_view what, const std::string& expected,
                Diagnostics& faults, std::vector<std::string> notes = {}) {
  if (node.kind == Kind::faulty) return;
  const std::string found = node.kind == Kind::null ? "it has no value" : "found " + describe(node);
  faults.error(node.where, std::string(what) + ": expected " + expected + ", " + found,
               std::move(notes));
}

/// "010" means eight to some readers and ten to others.
bool looks_octal(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return text.size() > 1 && text.front() == '0' && text[1] >= '0' && text[1] <= '9';
}

bool refuse_octal(const Node& node, std::string_view what, Diagnostics& faults) {
  if (!looks_octal(node.text)) return false;
  faults.error(node.where,
               std::string(what) + ": " + quoted(node.text) + " looks like an octal number",
               {"write it without leading zeros, or in quotes where text is meant"});
  return true;
}

std::string range_text(IntegerRange range) {
  constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
  if (range.most == unbounded) {
    return "a whole number of at least " + format_count(range.least);
  }
  return "a whole number from " + format_count(range.least) + " to " + format_count(range.most);
}

std::string range_text(RealRange range) {
  constexpr double unbounded = std::numeric_limits<double>::max();
  if (range.least == -unbounded && range.most == unbounded) return "a finite number";
  if (range.most == unbounded) return "a finite number of at least " + format_exact(range.least);
  return "a number from " + format_exact(range.least) + " to " + format_exact(range.most);
}

/// "write 1000000" for text that says a whole number in another way.
std::vector<std::string> whole_number_hint(std::string text) {
  std::erase_if(text, [](char c) { return c == '_' || c == ','; });
  const std::optional<double> value = parse_real(text);
  if (!value ||
      *value != static_cast<double>(static_cast<std::int64_t>(std::clamp(*value, -9e15, 9e15)))) {
    return {};
  }
  return {"write " + std::to_string(static_cast<std::int64_t>(*value))};
}

/// A key as the file spells it: the typed view may have been given another spelling of it.
std::string written_key(const Node& node, std::string_view key) {
  const Location& where = node.key_where;
  if (!where.known() || where.offset + where.length > where.source->text.size()) {
    return std::string(key);
  }
  std::string_view text = std::string_view(where.source->text).substr(where.offset, where.length);
  while (!text.empty() && (text.front() == '"' || text.front() == '\'' || text.front() == '-')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == '"' || text.back() == '\'')) text.remove_suffix(1);
  const auto same = [](char a, char b) { return a == b || (a == '_' && b == '-'); };
  if (!std::equal(text.begin(), text.end(), key.begin(), key.end(), same)) return std::string(key);
  return std::string(text);
}

template <class T>
std::optional<T> as_quantity(const Node& node, std::string_view what,
                             Parsed<T> (*parse)(std::string_view), const char* example,
                             std::string (*units)(), Diagnostics& faults) {
  const std::string expected = std::string("a quantity such as ") + example;
  if (node.kind != Kind::string && node.kind != Kind::integer && node.kind != Kind::real) {
    wrong_kind(node, what, expected, faults);
    return {};
  }
  Parsed<T> parsed = parse(node.text);
  if (!parsed.value) {
    faults.error(node.where, std::string(what) + ": " + quoted(node.text) + " " + parsed.problem,
                 {"expected " + expected, "units: " + units()});
  }
  return parsed.value;
}

}  // namespace

std::optional<std::int64_t> as_integer(const Node& node, std::string_view what, IntegerRange range,
                                       Diagnostics& faults) {
  if (node.kind != Kind::integer) {
    wrong_kind(node, what, range_text(range), faults, whole_number_hint(node.text));
    return {};
  }
  if (refuse_octal(node, what, faults)) return {};
  const std::optional<std::int64_t> value = parse_integer(node.text);
  if (!value || *value < range.least || *value > range.most) {
    wrong_kind(node, what, range_text(range), faults);
    return {};
  }
  return value;
}

std::optional<double> as_real(const Node& node, std::string_view what, RealRange range,
                              Diagnostics& faults) {
  if (node.kind != Kind::integer && node.kind != Kind::real) {
    wrong_kind(node, what, range_text(range), faults);
    return {};
  }
  if (refuse_octal(node, what, faults)) return {};
  const std::optional<double> value = parse_real(node.text);
  if (!value || *value < range.least || *value > range.most) {
    wrong_kind(node, what, range_text(range), faults);
    return {};
  }
  return value;
}

std::optional<bool> as_boolean(const Node& node, std::string_view what, Diagnostics& faults) {
  if (node.kind == Kind::boolean) return node.text.front() == 't' || node.text.front() == 'T';
  std::vector<std::string> notes;
  for (const char* yes : {"yes", "Yes", "YES", "on", "On", "ON", "y", "Y", "1"}) {
    if (node.text == yes) notes = {"write true"};
  }
  for (const char* no : {"no", "No", "NO", "off", "Off", "OFF", "n", "N", "0"}) {
    if (node.text == no) notes = {"write false"};
  }
  wrong_kind(node, what, "true or false", faults, std::move(notes));
  return {};
}

std::optional<std::string> as_string(const Node& node, std::string_view what, Diagnostics& faults) {
  const bool scalar =
      node.kind == Kind::boolean || node.kind == Kind::integer || node.kind == Kind::real;
  if (node.kind != Kind::string && !node.untyped) {
    std::vector<std::string> notes;
    if (scalar) notes = {"write it in quotes: '" + node.text + "'"};
    wrong_kind(node, what, "text", faults, std::move(notes));
    return {};
  }
  if (node.text.empty()) {
    faults.error(node.where, std::string(what) + ": the text is empty");
    return {};
  }
  return node.text;
}

std::optional<std::size_t> as_choice(const Node& node, std::string_view what,
                                     std::span<const std::string> names, Diagnostics& faults) {
  const auto found = std::find(names.begin(), names.end(), node.text);
  const bool word = node.kind == Kind::string || node.untyped;
  if (word && found != names.end()) return static_cast<std::size_t>(found - names.begin());
  if (word) {
    faults.error(node.where, std::string(what) + ": unknown value " + quoted(node.text),
                 suggest(node.text, names));
  } else {
    wrong_kind(node, what, "one of: " + join(names), faults);
  }
  return {};
}

std::optional<Bytes> as_bytes(const Node& node, std::string_view what, Diagnostics& faults) {
  return as_quantity<Bytes>(node, what, parse_bytes, "80 GiB", byte_units, faults);
}
std::optional<BytesPerSecond> as_bytes_per_second(const Node& node, std::string_view what,
                                                  Diagnostics& faults) {
  return as_quantity<BytesPerSecond>(node, what, parse_bytes_per_second, "900 GB/s",
                                     bytes_per_second_units, faults);
}
std::optional<FlopsPerSecond> as_flops_per_second(const Node& node, std::string_view what,
                                                  Diagnostics& faults) {
  return as_quantity<FlopsPerSecond>(node, what, parse_flops_per_second, "989 TFLOP/s",
                                     flops_per_second_units, faults);
}
std::optional<Seconds> as_seconds(const Node& node, std::string_view what, Diagnostics& faults) {
  return as_quantity<Seconds>(node, what, parse_seconds, "1.5 ms", second_units, faults);
}

const Node* as_list(const Node& node, std::string_view what, Diagnostics& faults) {
  if (node.kind == Kind::list) return &node;
  wrong_kind(node, what, "a list", faults);
  return nullptr;
}
const Node* as_map(const Node& node, std::string_view what, Diagnostics& faults) {
  if (node.kind == Kind::map) return &node;
  wrong_kind(node, what, "a map", faults);
  return nullptr;
}

MapView::MapView(const Node& node, std::string what, Diagnostics& faults, UnknownKeys unknown)
    : node_(&node), what_(std::move(what)), faults_(&faults), unknown_(unknown) {
  as_map(node, what_, faults);
}

std::string MapView::name_of(std::string_view key) const {
  const Node* node = node_->child(key);
  return quoted(node ? written_key(*node, key) : std::string(key)) + " of " + what_;
}

const Node* MapView::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const Node* node = node_->child(key);
  if (node && node->kind == Kind::null && unknown_ == UnknownKeys::kept) return nullptr;
  return node;
}

const Node* MapView::require(std::string_view key) {
  const Node* node = find(key);
  if (!node && node_->kind == Kind::map) {
    faults_->error(node_->where, what_ + " lacks the key " + quoted(key));
  }
  return node;
}

template <class Convert>
auto MapView::optional_value(std::string_view key, Convert convert) {
  using T = typename decltype(convert(*node_, std::string_view()))::value_type;
  const Node* node = find(key);
  if (!node) return std::optional<Located<T>>();
  std::optional<T> value = convert(*node, name_of(key));
  if (!value) return std::optional<Located<T>>();
  return std::optional<Located<T>>(Located<T>{*std::move(value), node->where});
}

template <class Convert, class T>
Located<T> MapView::required_value(std::string_view key, Convert convert, T fallback) {
  const Node* node = require(key);
  if (!node) return {std::move(fallback), node_->where};
  return {convert(*node, name_of(key)).value_or(std::move(fallback)), node->where};
}

std::optional<Located<std::int64_t>> MapView::integer(std::string_view key, IntegerRange range) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_integer(node, what, range, *faults_);
  });
}
std::optional<Located<double>> MapView::real(std::string_view key, RealRange range) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_real(node, what, range, *faults_);
  });
}
std::optional<Located<bool>> MapView::boolean(std::string_view key) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_boolean(node, what, *faults_);
  });
}
std::optional<Located<std::string>> MapView::string(std::string_view key) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_string(node, what, *faults_);
  });
}
std::optional<Located<std::size_t>> MapView::choice(std::string_view key,
                                                    std::span<const std::string> names) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_choice(node, what, names, *faults_);
  });
}
std::optional<Located<Bytes>> MapView::bytes(std::string_view key) {
  return optional_value(
      key, [&](const Node& node, std::string_view what) { return as_bytes(node, what, *faults_); });
}
std::optional<Located<BytesPerSecond>> MapView::bytes_per_second(std::string_view key) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_bytes_per_second(node, what, *faults_);
  });
}
std::optional<Located<FlopsPerSecond>> MapView::flops_per_second(std::string_view key) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_flops_per_second(node, what, *faults_);
  });
}
std::optional<Located<Seconds>> MapView::seconds(std::string_view key) {
  return optional_value(key, [&](const Node& node, std::string_view what) {
    return as_seconds(node, what, *faults_);
  });
}
const Node* MapView::list(std::string_view key) {
  const Node* node = find(key);
  return node ? as_list(*node, name_of(key), *faults_) : nullptr;
}
const Node* MapView::map(std::string_view key) {
  const Node* node = find(key);
  return node ? as_map(*node, name_of(key), *faults_) : nullptr;
}

Located<std::int64_t> MapView::require_integer(std::string_view key, IntegerRange range) {
  return required_value(
      key,
      [&](const Node& node, std::string_view what) {
        return as_integer(node, what, range, *faults_);
      },
      range.least);
}
Located<double> MapView::require_real(std::string_view key, RealRange range) {
  return required_value(
      key,
      [&](const Node& node, std::string_view what) { return as_real(node, what, range, *faults_); },
      range.least);
}
Located<bool> MapView::require_boolean(std::string_view key) {
  return required_value(
      key,
      [&](const Node& node, std::string_view what) { return as_boolean(node, what, *faults_); },
      false);
}
Located<std::string> MapView::require_string(std::string_view key) {
  return required_value(
      key, [&](const Node& node, std::string_view what) { return as_string(node, what, *faults_); },
      std::string());
}
Located<std::size_t> MapView::require_choice(std::string_view key,
                                             std::span<const std::string> names) {
  return required_value(
      key,
      [&](const Node& node, std::string_view what) {
        return as_choice(node, what, names, *faults_);
      },
      std::size_t{0});
}
Located<Bytes> MapView::require_bytes(std::string_view key) {
  return required_value(
      key, [&](const Node& node, std::string_view what) { return as_bytes(node, what, *faults_); },
      Bytes());
}
Located<Seconds> MapView::require_seconds(std::string_view key) {
  return required_value(
      key,
      [&](const Node& node, std::string_view what) { return as_seconds(node, what, *faults_); },
      Seconds());
}
const Node* MapView::require_list(std::string_view key) {
  const Node* node = require(key);
  return node ? as_list(*node, name_of(key), *faults_) : nullptr;
}
const Node* MapView::require_map(std::string_view key) {
  const Node* node = require(key);
  return node ? as_map(*node, name_of(key), *faults_) : nullptr;
}

void MapView::finish() {
  if (node_->kind != Kind::map || unknown_ == UnknownKeys::kept) return;
  std::vector<std::string> sorted = known_;
  std::sort(sorted.begin(), sorted.end());
  std::size_t unknown = 0;
  for (const Node& child : node_->children) {
    if (std::binary_search(sorted.begin(), sorted.end(), child.key)) continue;
    // Faults past those shown are only counted; they need no search for a suggestion.
    const bool shown = ++unknown <= Diagnostics::most_shown;
    faults_->error(child.key_where,
                   "unknown key " + quoted(written_key(child, child.key)) + " in " + what_,
                   shown ? suggest(child.key, sorted) : std::vector<std::string>());
  }
}

}  // namespace shardfit::spec
