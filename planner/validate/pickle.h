#pragma once
// Python pickles of plain data, read without running anything: numbers, strings, lists, tuples,
// dicts, None and booleans. An opcode that names, calls or builds an object is refused. Facts:
// Python's pickletools.py (protocols 0 to 5).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostic.h"

namespace shardfit::validate {

class Pickle {
 public:
  enum class Kind : std::uint8_t { none, boolean, integer, real, string, list, dict };
  using Index = std::uint32_t;

  /// Throws InputError: an opcode beyond data (its name and offset), a damaged or cut off file,
  /// more values than most_values.
  explicit Pickle(SourcePtr source);

  Index root() const { return root_; }
  Kind kind(Index value) const { return values_[value].kind; }
  /// 0 where it is none.
  std::int64_t integer(Index value) const { return values_[value].integer; }
  double real(Index value) const;
  std::string_view text(Index value) const;
  /// Of a list or tuple: its elements; of a dict: keys and values in turn.
  const std::vector<Index>& items(Index value) const;
  /// The value of a string key; `missing` where there is none, or `dict` is no dict.
  static constexpr Index missing = 0xffffffff;
  Index find(Index dict, std::string_view key) const;
  /// An integer under a key, else 0.
  std::int64_t integer_of(Index dict, std::string_view key) const;

  static constexpr std::size_t most_values = 200'000'000;

 private:
  friend class PickleReader;
  struct Value {
    Kind kind = Kind::none;
    std::int64_t integer = 0;  // also a real's bits, a string's offset, a list's place in lists_
    std::uint64_t length = 0;  // of a string
  };
  SourcePtr source_;
  std::vector<Value> values_;
  std::vector<std::vector<Index>> lists_;
  Index root_ = 0;
};

/// The bytes of a file of any kind, at most `most`; throws InputError.
SourcePtr read_binary(const std::string& path, std::int64_t most = std::int64_t{2} << 30);

}  // namespace shardfit::validate
