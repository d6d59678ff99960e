#pragma once
// Numbers by name, in one block of memory however many names there are.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace shardfit {

/// The names are the caller's and must stay where they are.
class NameTable {
 public:
  /// Room for `expected` names; more may come.
  explicit NameTable(std::size_t expected = 0);
  void reserve(std::size_t expected);

  /// Gives the name this number, unless it has one; the number that it has.
  std::int32_t add(std::string_view name, std::int32_t number);
  std::optional<std::int32_t> find(std::string_view name) const;
  std::size_t size() const { return size_; }
  /// In no order.
  std::vector<std::string_view> names() const;

 private:
  struct Slot {
    const char* text = nullptr;  // none: free
    std::uint32_t length = 0;
    std::int32_t number = 0;
    std::string_view name() const { return {text, length}; }
  };
  /// Where the name stands, or the free place where it would.
  std::size_t place_of(std::string_view name) const;
  void resize(std::size_t slots);

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::size_t size_ = 0;
};

}  // namespace shardfit
