#pragma once
// The free blocks of one pool and stream, in the allocator's order: (size, address).

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace shardfit::run {

/// Index of a block in the allocator's table; stable while the block is allocated.
using BlockHandle = std::uint32_t;

/// Bins of neighbouring sizes (16 a power of two) with a bitmap of those in use. A bin is an
/// array, largest keys first: a search halves it without branches, the lowest address of a size is
/// taken from its end, and blocks that come back in falling order of addresses go there. Training
/// programs keep some 5 to 300 free blocks a pool, a handful in most bins and a hundred where
/// gradients of one size wait. A bin with more than 1024 goes over to an ordered set, so that a
/// hundred thousand blocks of one size stay workable.
class FreeBlocks {
 public:
  /// size / 512 (41 bits; below above_sizes), address / 512 (55 bits), handle (32 bits): ordered as
  /// a number. Never 0.
  __extension__ using Key = unsigned __int128;

  static constexpr std::int64_t unit = 512;  // every block size and address is a multiple of it
  static constexpr std::int64_t above_sizes = std::int64_t{1} << 49;  // all blocks are smaller
  static constexpr Key none = 0;

  static Key key(std::int64_t size, std::int64_t address, BlockHandle handle) {
    return (static_cast<Key>(static_cast<std::uint64_t>(size) / unit) << 87) |
           (static_cast<Key>(static_cast<std::uint64_t>(address) / unit) << 32) | handle;
  }
  static BlockHandle handle_of(Key key) { return static_cast<BlockHandle>(key); }
  static std::int64_t size_of(Key key) { return static_cast<std::int64_t>(key >> 87) * unit; }

  /// The smallest block of at least `size` bytes, the lowest address among equals; or none.
  Key best_fit(std::int64_t size) const { return at_least(bound(size)); }
  /// The key that follows one that is inside; or none.
  Key after(Key key) const { return at_least(key + 1); }
  /// The largest key below another; or none.
  Key before(Key key) const;
  /// Below every block of at least `size` bytes, above all others.
  static Key bound(std::int64_t size) { return key(std::min(size, above_sizes), 0, 0); }
  /// Every key in order.
  std::vector<Key> keys() const;

  void insert(Key key) {
    const std::uint32_t index = bin_of(key);
    Bin& bin = bins_[index];
    if (bin.count == bin.capacity && !make_room(bin, key)) return;
    Key* at = below(bin, key);
    std::copy_backward(at, bin.end(), bin.end() + 1);
    *at = key;
    ++bin.count;
    used_[index / 64] |= std::uint64_t{1} << (index % 64);
  }

  void erase(Key key) {
    const std::uint32_t index = bin_of(key);
    Bin& bin = bins_[index];
    if (bin.many) {
      bin.many->erase(key);
      if (!bin.many->empty()) return;
      bin.many.reset();
    } else {
      Key* next = below(bin, key);
      std::copy(next, bin.end(), next - 1);
      if (--bin.count > 0) return;
    }
    used_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
  }

  /// erase(from) and insert(to).
  void replace(Key from, Key to) {
    const std::uint32_t index = bin_of(from);
    Bin& bin = bins_[index];
    if (index != bin_of(to) || bin.many) {
      erase(from);
      insert(to);
      return;
    }
    Key* at = below(bin, from) - 1;
    Key* onto = at;
    if (at != bin.keys.get() && at[-1] < to) {
      onto = below(bin, to);
      std::copy_backward(onto, at, at + 1);
    } else if (at + 1 != bin.end() && to < at[1]) {
      onto = below(bin, to) - 1;
      std::copy(at + 1, onto + 1, at);
    }
    *onto = to;
  }

 private:
  static constexpr std::uint32_t first_capacity = 4;
  static constexpr std::uint32_t most_in_array = 1024;
  static constexpr std::uint32_t bin_count = 640;  // covers above_sizes
  static constexpr std::uint32_t words = bin_count / 64;

  struct Bin {
    Bin() = default;
    Bin(const Bin& other);
    Bin& operator=(const Bin&) = delete;
    ~Bin() = default;
    std::unique_ptr<Key[]> keys;
    std::uint32_t count = 0, capacity = 0;  // of the array; 0 where there is a set
    std::unique_ptr<std::set<Key>> many;
    Key* end() const { return keys.get() + count; }
  };

  /// Sizes below 32 units have a bin each, larger ones 16 bins a power of two; a larger key never
  /// lies in a lower bin.
  static std::uint32_t bin_of(Key key) {
    const auto units = static_cast<std::uint64_t>(key >> 87);
    const auto shift = static_cast<std::uint32_t>(std::bit_width(units | 16)) - 5;
    return (shift << 4) + static_cast<std::uint32_t>(units >> shift);
  }

  Key at_least(Key bound) const {
    const std::uint32_t index = bin_of(bound);
    if (Key found = least(bins_[index], bound); found != none) return found;
    const std::uint32_t next = next_used(index + 1);
    return next == bin_count ? none : least(bins_[next], bound);
  }

  /// The least key of a bin that is not below the bound; or none.
  static Key least(const Bin& bin, Key bound) {
    if (bin.many) {
      const auto found = bin.many->lower_bound(bound);
      return found == bin.many->end() ? none : *found;
    }
    const Key* at = below(bin, bound);
    return at == bin.keys.get() ? none : at[-1];
  }

  /// The place of the first key of an array that is below another; its end where none is.
  static Key* below(const Bin& bin, Key key) {
    Key* first = bin.keys.get();
    for (std::uint32_t left = bin.count; left > 0;) {
      const std::uint32_t half = (left + 1) / 2;
      first += first[half - 1] < key ? 0 : half;
      left -= half;
    }
    return first;
  }

  /// First bin in use from `index` on, bin_count if there is none.
  std::uint32_t next_used(std::uint32_t index) const {
    std::uint32_t word = index / 64;
    if (word == words) return bin_count;
    std::uint64_t bits = used_[word] & (~std::uint64_t{0} << (index % 64));
    while (bits == 0) {
      if (++word == words) return bin_count;
      bits = used_[word];
    }
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
  }

  /// Doubles the array; false where the bin is a set, which has taken the key then.
  bool make_room(Bin& bin, Key key);

  std::array<Bin, bin_count> bins_;
  std::array<std::uint64_t, words> used_{};
};

}  // namespace shardfit::run
