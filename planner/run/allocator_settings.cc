#include "run/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <set>
#include <vector>

namespace shardfit::run {

SettingsError::SettingsError(std::size_t at, std::string what_found, std::string what_expected)
    : std::runtime_error("position " + std::to_string(at + 1) + ": found " + what_found +
                         ", expected " + what_expected),
      position(at),
      found(std::move(what_found)),
      expected(std::move(what_expected)) {}

namespace {

constexpr std::int64_t mib = 1 << 20;
constexpr std::int64_t smallest_large_request = 10 * mib;

constexpr std::string_view known_keys =
    "backend, expandable_segments, garbage_collection_threshold, "
    "graph_capture_record_stream_reuse, large_segment_size_mb, max_non_split_rounding_mb, "
    "max_split_size_mb, per_process_memory_fraction, pinned_free_catch_all, "
    "pinned_max_cached_size_mb, pinned_max_round_threshold_mb, pinned_num_register_threads, "
    "pinned_reserve_segment_size_mb, pinned_use_background_threads, "
    "pinned_use_cuda_host_register, pinned_use_hip_host_register, release_lock_on_cudamalloc, "
    "release_lock_on_hipmalloc, roundup_power2_divisions, throw_on_cudamalloc_oom";

struct Token {
  std::string text;
  std::size_t position;
};

/// Separators , : [ ] and the words between them; blanks vanish, also inside words.
std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  bool open = false;  // the last token is a word that goes on
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',' || c == ':' || c == '[' || c == ']') {
      tokens.push_back({std::string(1, c), i});
      open = false;
    } else if (!std::isspace(static_cast<unsigned char>(c))) {
      if (!open) tokens.push_back({"", i});
      tokens.back().text += c;
      open = true;
    }
  }
  return tokens;
}

class Parser {
 public:
  Parser(std::string_view text, const AllocatorSettings& before)
      : end_(text.size()), tokens_(tokens_of(text)), settings_(before) {
    settings_.max_split_size = AllocatorSettings::unlimited;
    settings_.garbage_collection_threshold = 0;
    settings_.roundup_shift.fill(0);
  }

  AllocatorSettings parse() {
    find_large_segment_size();
    settings_.max_non_split_rounding = settings_.large_segment_size;
    while (next_ < tokens_.size()) {
      entry();
      if (next_ == tokens_.size()) break;
      if (!is(",")) fail("',' or the end");
      ++next_;
    }
    return settings_;
  }

 private:
  /// Read ahead of everything else: the two sizes below it are compared with it.
  void find_large_segment_size() {
    for (std::size_t i = 0; i + 2 < tokens_.size(); ++i) {
      if (tokens_[i].text != "large_segment_size_mb" || tokens_[i + 1].text != ":") continue;
      next_ = i + 2;
      settings_.large_segment_size = megabytes(smallest_large_request / mib + 1,
                                               "a size in MiB above 10 (large_segment_size_mb)");
    }
    next_ = 0;
  }

  void entry() {
    const std::string key = tokens_[next_].text;
    if (known_keys.find(key) == std::string_view::npos || key.size() < 3 || !whole_key(key)) {
      fail("one of " + std::string(known_keys));
    }
    if (!seen_.insert(key).second) fail("each key once; '" + key + "' stands there already");
    ++next_;
    if (!is(":")) fail("':' after '" + key + "'");
    ++next_;
    value(key);
  }

  static bool whole_key(const std::string& key) {
    for (std::size_t at = 0; (at = known_keys.find(key, at)) != std::string_view::npos; ++at) {
      const bool starts = at == 0 || known_keys[at - 1] == ' ';
      const std::size_t behind = at + key.size();
      if (starts && (behind == known_keys.size() || known_keys[behind] == ',')) return true;
    }
    return false;
  }

  void value(const std::string& key) {
    const std::int64_t least = settings_.large_segment_size / mib;
    const std::string at_least =
        "a size in MiB of at least " + std::to_string(least) + " (large_segment_size_mb)";
    if (key == "max_split_size_mb") {
      settings_.max_split_size = megabytes(least, at_least);
    } else if (key == "max_non_split_rounding_mb") {
      settings_.max_non_split_rounding = megabytes(least, at_least);
    } else if (key == "large_segment_size_mb") {
      ++next_;  // checked above
    } else if (key == "garbage_collection_threshold") {
      settings_.garbage_collection_threshold = fraction(false);
    } else if (key == "per_process_memory_fraction") {
      settings_.per_process_memory_fraction = fraction(true);
    } else if (key == "roundup_power2_divisions") {
      divisions();
    } else if (key == "expandable_segments") {
      settings_.expandable_segments = boolean();
    } else if (key == "throw_on_cudamalloc_oom") {
      settings_.throw_on_cudamalloc_oom = boolean();
    } else if (key == "backend") {
      if (!is("native")) fail("'native' (cudaMallocAsync is another allocator, not replayed here)");
      ++next_;
    } else if (key == "pinned_num_register_threads") {
      power_of_two("a power of 2 up to 128", 1, 128);
    } else if (key == "pinned_reserve_segment_size_mb") {
      integer(1, "a size in MiB above 0");
    } else if (key == "pinned_max_round_threshold_mb" || key == "pinned_max_cached_size_mb") {
      integer(0, "a size in MiB");
    } else {
      boolean();
    }
  }

  void divisions() {
    if (!is("[")) {
      settings_.roundup_shift.fill(divisions_number(1));
      return;
    }
    ++next_;
    List list;
    for (bool first = true; !is("]"); first = false) {
      if (!first) {
        if (!is(",")) fail("',' or ']'");
        ++next_;
        if (is("]")) break;
      }
      interval(list);
    }
    ++next_;
  }

  struct List {
    std::size_t last = 0;  // interval named last
    bool named = false;    // any yet: the first one also sets those below it
  };

  /// SIZE:DIVISIONS or >:DIVISIONS, SIZE in MiB.
  void interval(List& list) {
    auto& shift = settings_.roundup_shift;
    const auto from = [&](std::size_t i) { return shift.begin() + static_cast<std::ptrdiff_t>(i); };
    if (is(">")) {
      ++next_;
      std::fill(from(list.last + 1), shift.end(), divisions_of_interval());
      return;
    }
    const std::int64_t size =
        power_of_two("'>' or a size in MiB that is a power of 2", 1, std::int64_t{1} << 40);
    list.last = std::min<std::size_t>(std::bit_width(static_cast<std::uint64_t>(size)) - 1, 15);
    const std::uint8_t value = divisions_of_interval();
    if (!list.named) std::fill(shift.begin(), from(list.last), value);
    list.named = true;
    *from(list.last) = value;
  }

  std::uint8_t divisions_of_interval() {
    if (!is(":")) fail("':' and a number of divisions");
    ++next_;
    return divisions_number(0);
  }

  std::uint8_t divisions_number(std::int64_t least) {
    const std::int64_t n = power_of_two(
        least ? "a number of divisions that is a power of 2" : "0 or a power of 2", least, 1 << 30);
    return n == 0 ? 0
                  : static_cast<std::uint8_t>(std::bit_width(static_cast<std::uint64_t>(n)) - 1);
  }

  std::int64_t power_of_two(const std::string& expected, std::int64_t least, std::int64_t most) {
    const std::int64_t n = integer(least, expected);
    if (n > most || (n & (n - 1)) != 0) {
      --next_;
      fail(expected);
    }
    return n;
  }

  std::int64_t megabytes(std::int64_t least, const std::string& expected) {
    const std::int64_t n = integer(least, expected);
    return n > (AllocatorSettings::unlimited >> 20) ? AllocatorSettings::unlimited : n * mib;
  }

  std::int64_t integer(std::int64_t least, const std::string& expected) {
    const std::string text = next_ < tokens_.size() ? tokens_[next_].text : "";
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || stop != text.data() + text.size() || n < least) fail(expected);
    ++next_;
    return n;
  }

  /// In (0, 1), or in [0, 1] where the ends are allowed.
  double fraction(bool ends) {
    const std::string text = next_ < tokens_.size() ? tokens_[next_].text : "";
    char* stop = nullptr;
    const bool digit =
        !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '.');
    const double x = digit ? std::strtod(text.c_str(), &stop) : -1;
    const bool whole = digit && stop == text.c_str() + text.size();
    if (!whole || !(ends ? x >= 0 && x <= 1 : x > 0 && x < 1)) {
      fail(ends ? "a number from 0 to 1" : "a number above 0 and below 1");
    }
    ++next_;
    return x;
  }

  bool boolean() {
    if (!is("True") && !is("False")) fail("True or False");
    return tokens_[next_++].text == "True";
  }

  bool is(std::string_view text) const {
    return next_ < tokens_.size() && tokens_[next_].text == text;
  }

  [[noreturn]] void fail(std::string expected) const {
    if (next_ >= tokens_.size()) throw SettingsError(end_, "the end", std::move(expected));
    throw SettingsError(tokens_[next_].position, "'" + tokens_[next_].text + "'",
                        std::move(expected));
  }

  std::size_t end_;
  std::vector<Token> tokens_;
  AllocatorSettings settings_;
  std::set<std::string> seen_;
  std::size_t next_ = 0;
};

}  // namespace

AllocatorSettings parse_allocator_settings(std::string_view text, const AllocatorSettings& before) {
  return Parser(text, before).parse();
}

std::int64_t round_request(std::int64_t bytes, const AllocatorSettings& settings) {
  constexpr std::int64_t smallest = 512;
  if (bytes < smallest) return smallest;
  const int log2 = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
  const int shift = settings.roundup_shift[static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15))];
  if (shift > 0 && ((bytes - 1) >> (9 + shift)) > 0) {
    const std::int64_t step = std::int64_t{1} << (log2 - shift);
    return (bytes + step - 1) & -step;
  }
  return (bytes + smallest - 1) & -smallest;
}

}  // namespace shardfit::run
