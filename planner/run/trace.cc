#include "run/trace.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <unordered_map>

#include "base/format.h"
#include "run/allocator.h"

namespace shardfit::run {
namespace {

/// Thrown to leave a faulty line; the fault is reported by then.
struct BadLine {};

const std::vector<std::string> header_keys = {"name",    "about",  "torch",    "total",
                                              "context", "conf",   "fraction", "streams",
                                              "every",   "layout", "source"};
const std::vector<std::string> event_words = {
    "a",     "f",       "r",     "empty", "h", "e", "conf", "fraction", "pool+",
    "pool-", "pooldel", "peak0", "=",     "!", "|", "peak", "counters", "end"};

class Reader {
 public:
  Reader(const SourcePtr& source, Diagnostics& faults) : text_(source->text), faults_(faults) {
    trace_.source = source;
  }

  Trace read() {
    for (next_ = 0; next_ < text_.size() && faults_.size() < Diagnostics::most_shown;) {
      const std::size_t stop = std::min(text_.find('\n', next_), text_.size());
      begin_ = at_ = next_;
      end_ = stop > begin_ && text_[stop - 1] == '\r' ? stop - 1 : stop;
      next_ = stop + 1;
      if (begin_ == end_ || text_[begin_] == '#') continue;
      try {
        if (ended_) fail(begin_, end_, "nothing behind 'end'");
        in_events_ ? event_line() : header_line();
      } catch (const BadLine&) {
      }
    }
    if (faults_.size() < Diagnostics::most_shown) finish();
    return std::move(trace_);
  }

 private:
  // Words of a line, one blank between them.
  std::string_view rest() {
    const std::string_view text = text_.substr(at_, end_ - at_);
    word_ = at_;
    at_ = end_;
    return text;
  }
  bool more() const { return at_ < end_; }
  std::string_view word(const char* expected) {
    word_ = at_;
    const std::size_t stop = std::min({text_.find(' ', at_), end_});
    const std::string_view text = text_.substr(at_, stop - at_);
    if (text.empty()) fail(word_, word_, expected);
    at_ = stop < end_ ? stop + 1 : end_;
    if (stop < end_ && at_ == end_) fail(stop, end_, "no blank at the end of the line");
    return text;
  }
  void line_ends() {
    if (more()) fail(at_, end_, "the end of the line");
  }
  std::int64_t number(const char* expected, std::int64_t least, std::int64_t most) {
    const std::string_view text = word(expected);
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || stop != text.data() + text.size() || n < least || n > most) {
      fail(word_, word_ + text.size(), expected);
    }
    return n;
  }

  [[noreturn]] void fail(std::size_t from, std::size_t to, const std::string& expected,
                         std::vector<std::string> notes = {}) {
    const std::string found =
        from < to ? quoted(text_.substr(from, to - from)) : "the end of the line";
    faults_.error({trace_.source, from, to - from}, "found " + found + ", expected " + expected,
                  std::move(notes));
    throw BadLine{};
  }

  void header_line() {
    const std::string key(word("a key of the header or 'events'"));
    const std::size_t key_at = word_;
    if (key == "events") {
      line_ends();
      in_events_ = true;
      if (std::find(seen_.begin(), seen_.end(), "total") == seen_.end()) {
        fail(begin_, end_, "'total' (bytes of the card) in the header before it");
      }
      settings_ = trace_.header.settings;
      return;
    }
    if (std::find(header_keys.begin(), header_keys.end(), key) == header_keys.end()) {
      fail(key_at, key_at + key.size(), "a key of the header or 'events'",
           suggest(key, header_keys));
    }
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
      fail(key_at, key_at + key.size(), "each key once");
    }
    seen_.push_back(key);
    header_value(key);
    line_ends();
  }

  void header_value(const std::string& key) {
    TraceHeader& header = trace_.header;
    constexpr std::int64_t most = CachingAllocator::largest_total;
    if (key == "name") header.name = rest();
    if (key == "about") header.about = rest();
    if (key == "torch") header.torch = rest();
    if (key == "source") header.source = rest();
    if (key == "total") header.total = number("bytes of the card, up to 256 TiB", 0, most);
    if (key == "context") {
      header.context = number("bytes in use outside PyTorch, up to 256 TiB", 0, most);
      header.has_context = true;
    }
    if (key == "conf") {
      header.conf = std::string(rest());
      header.settings = settings_of(*header.conf, AllocatorSettings{});
    }
    if (key == "fraction") {
      const Trace::Fraction fraction = fraction_of();
      header.fraction = fraction.text;
      header.fraction_value = fraction.value;
    }
    if (key == "streams") {
      header.streams = static_cast<std::uint32_t>(
          number("a number of streams, 1 to 65535", 1, CachingAllocator::stream_limit - 1));
      header.has_streams = true;
    }
    if (key == "every") {
      header.every = static_cast<std::uint32_t>(number("a number of events", 0, 1'000'000'000));
      header.has_every = true;
    }
    if (key == "layout") {
      const std::string_view text = word("'all' or 'end'");
      if (text != "all" && text != "end") fail(word_, word_ + text.size(), "'all' or 'end'");
      header.layout_after_each = text == "all";
      header.has_layout = true;
    }
  }

  AllocatorSettings settings_of(const std::string& text, const AllocatorSettings& before) {
    try {
      return parse_allocator_settings(text, before);
    } catch (const SettingsError& error) {
      const std::size_t from = word_ + error.position;
      faults_.error({trace_.source, from, 1},
                    "found " + error.found + ", expected " + error.expected);
      throw BadLine{};
    }
  }

  Trace::Fraction fraction_of() {
    const std::string_view text = word("a number from 0 to 1");
    const std::optional<double> value = parse_real(text);
    if (!value || !(*value >= 0 && *value <= 1)) {
      fail(word_, word_ + text.size(), "a number from 0 to 1");
    }
    return {std::string(text), *value};
  }

  void event_line() {
    const std::string_view text = word("an event or an expectation");
    const std::size_t from = word_;
    if (text == "=" || text == "peak" || text == "counters") return numbers(text);
    if (text == "!") return error();
    if (text == "|") return segment();
    if (text == "end") {
      line_ends();
      ended_ = true;
      return;
    }
    TraceEvent event;
    if (!block_event(text, event) && !other_event(text, event)) {
      fail(from, from + text.size(), "an event or an expectation", suggest(text, event_words));
    }
    line_ends();
    trace_.events.push_back(event);
    trace_.offsets.push_back(static_cast<std::uint32_t>(begin_));
  }

  bool block_event(std::string_view text, TraceEvent& event) {
    if (text == "a") {
      event.kind = EventKind::allocate;
      const std::uint64_t id = block_id();
      const std::size_t from = word_;
      event.bytes = number("bytes, 0 to 2^61", 0, CachingAllocator::largest_request);
      event.stream = stream();
      event.target = static_cast<std::uint32_t>(trace_.ids.size());
      if (!blocks_.try_emplace(id, event.target).second) {
        fail(from, from + std::to_string(id).size(), "an ID that was not used before");
      }
      trace_.ids.push_back(id);
      live_.push_back(true);
    } else if (text == "f") {
      event.kind = EventKind::free;
      event.target = live_block();
      live_[event.target] = false;
    } else if (text == "r") {
      event.kind = EventKind::record_stream;
      event.target = live_block();
      event.stream = stream();
    } else {
      return false;
    }
    return true;
  }

  bool other_event(std::string_view text, TraceEvent& event) {
    if (text == "empty") {
      event.kind = EventKind::empty_cache;
    } else if (text == "h") {
      event.kind = EventKind::hold;
    } else if (text == "e") {
      event.kind = EventKind::complete;
    } else if (text == "peak0") {
      event.kind = EventKind::reset_peaks;
    } else if (text == "conf") {
      event.kind = EventKind::settings;
      event.bytes = static_cast<std::int64_t>(trace_.settings.size());
      const std::string conf(rest());
      settings_ = settings_of(conf, settings_);
      trace_.settings.push_back({conf, settings_});
    } else if (text == "fraction") {
      event.kind = EventKind::fraction;
      event.bytes = static_cast<std::int64_t>(trace_.fractions.size());
      trace_.fractions.push_back(fraction_of());
    } else {
      return pool_event(text, event);
    }
    return true;
  }

  bool pool_event(std::string_view text, TraceEvent& event) {
    if (text != "pool+" && text != "pool-" && text != "pooldel") return false;
    event.target = static_cast<std::uint32_t>(number("the number of a pool, from 1", 1, 1 << 30));
    const std::size_t from = word_;
    const std::size_t to = from + std::to_string(event.target).size();
    const auto entered = std::find(entered_.begin(), entered_.end(), event.target);
    const auto made = std::find(pools_.begin(), pools_.end(), event.target);
    if (text == "pool+") {
      event.kind = EventKind::enter_pool;
      if (entered != entered_.end()) fail(from, to, "a pool that is not entered already");
      while (more()) pool_flag(event);
      entered_.push_back(event.target);
      if (made == pools_.end()) pools_.push_back(event.target);
    } else if (text == "pool-") {
      event.kind = EventKind::leave_pool;
      if (entered == entered_.end()) fail(from, to, "a pool that is entered");
      entered_.erase(entered);
    } else {
      event.kind = EventKind::delete_pool;
      if (entered != entered_.end()) fail(from, to, "a pool that is left");
      if (made == pools_.end()) fail(from, to, "a pool that was entered before");
      pools_.erase(made);
    }
    return true;
  }

  void pool_flag(TraceEvent& event) {
    const std::string_view flag = word("'use_on_oom' or 'no_split'");
    bool* target = flag == "use_on_oom" ? &event.use_on_oom
                   : flag == "no_split" ? &event.no_split
                                        : nullptr;
    if (target == nullptr || *target) {
      fail(word_, word_ + flag.size(), "'use_on_oom' or 'no_split', each once");
    }
    *target = true;
  }

  std::uint64_t block_id() {
    return static_cast<std::uint64_t>(
        number("the ID of a block, a whole number", 0, std::int64_t{1} << 62));
  }
  std::uint32_t live_block() {
    const std::uint64_t id = block_id();
    const auto found = blocks_.find(id);
    if (found == blocks_.end() || !live_[found->second]) {
      fail(word_, word_ + std::to_string(id).size(), "the ID of a block that is allocated");
    }
    return found->second;
  }
  std::uint16_t stream() {
    const auto most = static_cast<std::int64_t>(trace_.header.streams) - 1;
    return static_cast<std::uint16_t>(
        number(most == 0 ? "stream 0, the only one" : "a stream of the header", 0, most));
  }

  Expectation& expect(Expectation::Kind kind) {
    Expectation& expectation = trace_.expectations.emplace_back();
    expectation.kind = kind;
    expectation.after = static_cast<std::uint32_t>(trace_.events.size());
    expectation.offset = static_cast<std::uint32_t>(begin_);
    return expectation;
  }

  void numbers(std::string_view text) {
    std::array<std::int64_t, 6> values{};
    const std::size_t count = text == "=" ? 6 : 4;
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = number(count == 6 ? "6 numbers" : "4 numbers", 0, std::int64_t{1} << 62);
    }
    line_ends();
    expect(text == "="      ? Expectation::Kind::values
           : text == "peak" ? Expectation::Kind::peak
                            : Expectation::Kind::counters)
        .numbers = values;
  }

  void error() {
    const std::string text(rest());
    if (text.empty()) fail(end_, end_, "the text of the error");
    if (trace_.events.empty() || trace_.events.back().kind != EventKind::allocate) {
      fail(begin_, end_, "an allocation above an error");
    }
    live_[trace_.events.back().target] = false;
    expect(Expectation::Kind::error).texts.push_back(text);
  }

  /// | SIZE small|large STREAM 0.P x|- : BLOCKS
  void segment() {
    constexpr std::int64_t most = CachingAllocator::largest_total * 2;
    const std::int64_t size = number("bytes of a segment", 0, most);
    const std::size_t size_at = word_;
    one_of("small", "large");
    stream();
    const std::string_view pool = word("a pool: 0.P");
    if (!pool.starts_with("0.") || !parse_integer(pool.substr(2))) {
      fail(word_, word_ + pool.size(), "a pool: 0.P");
    }
    one_of("x", "-");
    one_of(":", ":");
    std::int64_t sum = 0;
    while (more()) sum += block(most);
    if (sum != size) {
      fail(size_at, size_at + std::to_string(size).size(),
           "the sum of the blocks, " + std::to_string(sum));
    }
    const auto after = static_cast<std::uint32_t>(trace_.events.size());
    auto& all = trace_.expectations;
    const bool goes_on =
        !all.empty() && all.back().kind == Expectation::Kind::layout && all.back().after == after;
    Expectation& layout = goes_on ? all.back() : expect(Expectation::Kind::layout);
    layout.texts.emplace_back(text_.substr(begin_, end_ - begin_));
  }

  void one_of(std::string_view a, std::string_view b) {
    const std::string expected =
        "'" + std::string(a) + "'" + (a == b ? "" : " or '" + std::string(b) + "'");
    const std::string_view text = word(expected.c_str());
    if (text != a && text != b) fail(word_, word_ + text.size(), expected);
  }

  /// SIZEf, SIZEaREQUESTED@ID or SIZEpREQUESTED@ID; its size.
  std::int64_t block(std::int64_t most) {
    constexpr const char* expected = "a block: SIZEf, SIZEaREQUESTED@ID or SIZEpREQUESTED@ID";
    const std::string_view text = word(expected);
    const std::size_t letter = text.find_first_not_of("0123456789");
    const auto number_at = [&](std::size_t from, std::size_t to) {
      const auto value = from < to ? parse_integer(text.substr(from, to - from)) : std::nullopt;
      return value && *value >= 0 && *value <= std::int64_t{1} << 62 ? *value : -1;
    };
    const std::int64_t size = letter == text.npos ? -1 : number_at(0, letter);
    bool good = size >= 0 && size <= most;
    if (good && text[letter] == 'f') {
      good = letter + 1 == text.size();
    } else if (good) {
      const std::size_t at = text.find('@');
      good = (text[letter] == 'a' || text[letter] == 'p') && at != text.npos &&
             number_at(letter + 1, at) >= 0 &&
             (text.substr(at + 1) == "?" || number_at(at + 1, text.size()) >= 0);
    }
    if (!good) fail(word_, word_ + text.size(), expected);
    return size;
  }

  void finish() {
    const std::size_t end = text_.size();
    if (!ended_) {
      const char* what = in_events_ ? "the trace stops without 'end'" : "the trace has no 'events'";
      faults_.error({trace_.source, end, 0}, what);
    }
  }

  std::string_view text_;
  Diagnostics& faults_;
  Trace trace_;
  std::size_t next_ = 0, begin_ = 0, end_ = 0, at_ = 0, word_ = 0;
  bool in_events_ = false, ended_ = false;
  std::vector<std::string> seen_;
  AllocatorSettings settings_;
  std::unordered_map<std::uint64_t, std::uint32_t> blocks_;
  std::vector<bool> live_;
  std::vector<std::uint32_t> entered_, pools_;
};

}  // namespace

Trace read_trace(const SourcePtr& source, Diagnostics& faults) {
  return Reader(source, faults).read();
}

}  // namespace shardfit::run
