#include "validate/pickle.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/format.h"

namespace shardfit::validate {

namespace {

/// Opcodes that are refused, by name.
struct Refused {
  char code;
  const char* name;
};
constexpr Refused refused[] = {{'c', "GLOBAL"},
                               {'\x93', "STACK_GLOBAL"},
                               {'R', "REDUCE"},
                               {'b', "BUILD"},
                               {'i', "INST"},
                               {'o', "OBJ"},
                               {'\x81', "NEWOBJ"},
                               {'\x92', "NEWOBJ_EX"},
                               {'P', "PERSID"},
                               {'Q', "BINPERSID"},
                               {'\x82', "EXT1"},
                               {'\x83', "EXT2"},
                               {'\x84', "EXT4"},
                               {'\x97', "NEXT_BUFFER"},
                               {'\x98', "READONLY_BUFFER"},
                               {'\x8f', "EMPTY_SET"},
                               {'\x90', "ADDITEMS"},
                               {'\x91', "FROZENSET"},
                               {'\x96', "BYTEARRAY8"},
                               {'I', "INT"},
                               {'L', "LONG"},
                               {'F', "FLOAT"},
                               {'S', "STRING"},
                               {'V', "UNICODE"},
                               {'T', "BINSTRING"},
                               {'U', "SHORT_BINSTRING"},
                               {'p', "PUT"},
                               {'g', "GET"},
                               {'2', "DUP"},
                               {'0', "POP"},
                               {'1', "POP_MARK"},
                               {'l', "LIST"},
                               {'d', "DICT"},
                               {'B', "BINBYTES"},
                               {'C', "SHORT_BINBYTES"},
                               {'\x8e', "BINBYTES8"},
                               {'\x8b', "LONG4"}};

}  // namespace

class PickleReader {
 public:
  explicit PickleReader(Pickle& pickle) : out_(pickle), text_(pickle.source_->text) {}

  void read() {
    for (;;) {
      opcode_at_ = at_;
      const char code = take(1)[0];
      if (code == '.') break;
      step(code);
      if (out_.values_.size() > Pickle::most_values) fault("the pickle holds too many values");
    }
    if (stack_.size() != 1 || !marks_.empty()) fault("the pickle ends with other than one value");
    out_.root_ = stack_.back();
  }

 private:
  using Kind = Pickle::Kind;
  using Index = Pickle::Index;

  [[noreturn]] void fault(const std::string& message, std::vector<std::string> notes = {}) {
    // No place in the text: a caret in a binary file says nothing.
    throw InputError(whole_file(out_.source_->name),
                     message + " (at byte " + std::to_string(opcode_at_) + ")", std::move(notes));
  }

  std::string_view take(std::uint64_t count) {
    if (count > text_.size() - at_) fault("the pickle is cut off");
    const std::string_view part = text_.substr(at_, count);
    at_ += count;
    return part;
  }
  std::uint64_t little(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view part = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(part[i])) << (8 * i);
    }
    return value;
  }

  void push(Kind kind, std::int64_t integer = 0, std::uint64_t length = 0) {
    stack_.push_back(static_cast<Index>(out_.values_.size()));
    out_.values_.push_back({kind, integer, length});
  }
  void push_list(Kind kind, std::vector<Index> items) {
    push(kind, static_cast<std::int64_t>(out_.lists_.size()));
    out_.lists_.push_back(std::move(items));
  }
  void push_text(std::uint64_t length) {
    const auto offset = static_cast<std::int64_t>(at_);
    take(length);
    push(Kind::string, offset, length);
  }

  /// Values above the last mark; the mark goes.
  std::vector<Index> above_mark() {
    if (marks_.empty()) fault("a mark is missing");
    const std::size_t from = marks_.back();
    marks_.pop_back();
    std::vector<Index> items(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    return items;
  }
  std::vector<Index> top(std::size_t count) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) fault("a value is missing");
    std::vector<Index> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  void append(Kind kind, const std::vector<Index>& items) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor || out_.values_[stack_.back()].kind != kind) {
      fault(kind == Kind::dict ? "items for what is no dict" : "elements for what is no list");
    }
    if (kind == Kind::dict && items.size() % 2 != 0) fault("a key without a value");
    auto& list = out_.lists_[static_cast<std::size_t>(out_.values_[stack_.back()].integer)];
    list.insert(list.end(), items.begin(), items.end());
  }

  void memoize(std::uint64_t number) {
    if (stack_.empty()) fault("nothing to remember");
    if (number > memo_.size() + (1U << 20)) fault("a memo of an odd number");
    if (number >= memo_.size()) memo_.resize(number + 1, Pickle::missing);
    memo_[number] = stack_.back();
  }
  void recall(std::uint64_t number) {
    if (number >= memo_.size() || memo_[number] == Pickle::missing) {
      fault("a value that was never remembered");
    }
    stack_.push_back(memo_[number]);
  }

  /// LONG1: a number of so many bytes, two's complement.
  void push_long(std::uint64_t bytes) {
    if (bytes > 9) fault("a whole number beyond 64 bits");
    const std::string_view part = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const bool negative = !part.empty() && (part.back() & 0x80);
      const auto byte = i < part.size() ? static_cast<unsigned char>(part[i])
                                        : static_cast<unsigned char>(negative ? 0xff : 0);
      value |= static_cast<std::uint64_t>(byte) << (8 * i);
    }
    // A ninth byte may only continue the sign, or hold the top of an address.
    if (bytes == 9 && part[8] != 0 && part[8] != '\xff') fault("a whole number beyond 64 bits");
    push(Kind::integer, static_cast<std::int64_t>(value));
  }

  void step(char code) {
    switch (code) {
      case '\x80': {  // PROTO
        if (little(1) > 5) fault("a pickle of a later protocol than 5");
        return;
      }
      case '\x95':  // FRAME
        little(8);
        return;
      case '(':
        marks_.push_back(stack_.size());
        return;
      case 'N':
        return push(Kind::none);
      case '\x88':
        return push(Kind::boolean, 1);
      case '\x89':
        return push(Kind::boolean, 0);
      case 'K':
        return push(Kind::integer, static_cast<std::int64_t>(little(1)));
      case 'M':
        return push(Kind::integer, static_cast<std::int64_t>(little(2)));
      case 'J':
        return push(Kind::integer, static_cast<std::int32_t>(little(4)));
      case '\x8a':
        return push_long(little(1));
      case 'G': {  // BINFLOAT, big endian
        const std::uint64_t bits = __builtin_bswap64(little(8));
        return push(Kind::real, static_cast<std::int64_t>(bits));
      }
      case '\x8c':
        return push_text(little(1));
      case 'X':
        return push_text(little(4));
      case '\x8d':
        return push_text(little(8));
      default:
        return containers(code);
    }
  }

  void containers(char code) {
    switch (code) {
      case ']':
      case ')':
        return push_list(Kind::list, {});
      case '}':
        return push_list(Kind::dict, {});
      case 'a':
        return append(Kind::list, top(1));
      case 'e':
        return append(Kind::list, above_mark());
      case 's':
        return append(Kind::dict, top(2));
      case 'u':
        return append(Kind::dict, above_mark());
      case 't':
        return push_list(Kind::list, above_mark());
      case '\x85':
        return push_list(Kind::list, top(1));
      case '\x86':
        return push_list(Kind::list, top(2));
      case '\x87':
        return push_list(Kind::list, top(3));
      case '\x94':
        return memoize(memo_.size());
      case 'q':
        return memoize(little(1));
      case 'r':
        return memoize(little(4));
      case 'h':
        return recall(little(1));
      case 'j':
        return recall(little(4));
      default:
        refuse(code);
    }
  }

  [[noreturn]] void refuse(char code) {
    for (const Refused& row : refused) {
      if (row.code != code) continue;
      fault(std::string("the pickle has an opcode beyond plain data, ") + row.name +
                ", and is refused",
            {"a memory snapshot of PyTorch holds dicts, lists, numbers and strings only; a pickle "
             "that does more can run any code where it is loaded"});
    }
    fault("this is no pickle: opcode " + std::to_string(static_cast<unsigned char>(code)));
  }

  Pickle& out_;
  std::string_view text_;
  std::size_t at_ = 0, opcode_at_ = 0;
  std::vector<Index> stack_, memo_;
  std::vector<std::size_t> marks_;
};

Pickle::Pickle(SourcePtr source) : source_(std::move(source)) { PickleReader(*this).read(); }

double Pickle::real(Index value) const {
  if (values_[value].kind == Kind::integer) return static_cast<double>(values_[value].integer);
  if (values_[value].kind != Kind::real) return 0;
  return std::bit_cast<double>(values_[value].integer);
}

std::string_view Pickle::text(Index value) const {
  if (values_[value].kind != Kind::string) return "";
  return std::string_view(source_->text)
      .substr(static_cast<std::size_t>(values_[value].integer), values_[value].length);
}

const std::vector<Pickle::Index>& Pickle::items(Index value) const {
  static const std::vector<Index> nothing;
  if (values_[value].kind != Kind::list && values_[value].kind != Kind::dict) return nothing;
  return lists_[static_cast<std::size_t>(values_[value].integer)];
}

Pickle::Index Pickle::find(Index dict, std::string_view key) const {
  if (dict == missing || values_[dict].kind != Kind::dict) return missing;
  const std::vector<Index>& list = items(dict);
  for (std::size_t i = 0; i + 1 < list.size(); i += 2) {
    if (text(list[i]) == key) return list[i + 1];
  }
  return missing;
}

std::int64_t Pickle::integer_of(Index dict, std::string_view key) const {
  const Index found = find(dict, key);
  return found == missing || values_[found].kind != Kind::integer ? 0 : integer(found);
}

SourcePtr read_binary(const std::string& path, std::int64_t most) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw InputError(whole_file(path), "no such file, or it cannot be read");
  if (size > static_cast<std::uintmax_t>(most)) {
    throw InputError(whole_file(path), "the file is larger than " + format_bytes(Bytes(most)));
  }
  Source source{path, std::string(size, '\0')};
  std::ifstream in(path, std::ios::binary);
  if (!in.read(source.text.data(), static_cast<std::streamsize>(size)) && size > 0) {
    throw InputError(whole_file(path), "the file cannot be read");
  }
  return std::make_shared<const Source>(std::move(source));
}

}  // namespace shardfit::validate
