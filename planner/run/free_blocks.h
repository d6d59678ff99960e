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

/// Bins of neighbouring sizes (16 a power of two) with a bitmap of those in use. A bin is a short
/// array without order: putting in and taking out touch its end only, the search for the best fit
/// is a minimum over one or two bins, without branches. Training programs keep some 5 to 300 free
/// blocks a pool, a handful in a bin. A bin with more than 128 goes over to an ordered set, so that
/// a hundred thousand blocks of one size stay workable.
///
/// `blocks` in the calls is the allocator's table: blocks[handle].slot belongs to this class.
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

  template <class Blocks>
  void insert(Key key, Blocks& blocks) {
    const std::uint32_t index = bin_of(key);
    Bin& bin = bins_[index];
    if (bin.count == bin.capacity && !make_room(bin, key)) return;
    blocks[handle_of(key)].slot = bin.count;
    bin.keys[bin.count++] = key;
    used_[index / 64] |= std::uint64_t{1} << (index % 64);
  }

  template <class Blocks>
  void erase(Key key, Blocks& blocks) {
    const std::uint32_t index = bin_of(key);
    Bin& bin = bins_[index];
    if (bin.many) {
      bin.many->erase(key);
      if (!bin.many->empty()) return;
      bin.many.reset();
    } else {
      const std::uint32_t slot = blocks[handle_of(key)].slot;
      const Key last = bin.keys[--bin.count];
      bin.keys[slot] = last;
      blocks[handle_of(last)].slot = slot;
      bin.keys[bin.count] = empty;
      if (bin.count > 0) return;
    }
    used_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
  }

  /// erase(from) and insert(to).
  template <class Blocks>
  void replace(Key from, Key to, Blocks& blocks) {
    const std::uint32_t index = bin_of(from);
    if (index != bin_of(to) || bins_[index].many) {
      erase(from, blocks);
      insert(to, blocks);
      return;
    }
    const std::uint32_t slot = blocks[handle_of(from)].slot;
    bins_[index].keys[slot] = to;
    blocks[handle_of(to)].slot = slot;
  }

 private:
  static constexpr Key empty = ~Key{0};      // fills an array behind its keys
  static constexpr std::uint32_t group = 4;  // keys looked at together
  static constexpr std::uint32_t most_in_array = 128;
  static constexpr std::uint32_t bin_count = 640;  // covers above_sizes
  static constexpr std::uint32_t words = bin_count / 64;

  struct Bin {
    std::unique_ptr<Key[]> keys;
    std::uint32_t count = 0, capacity = 0;  // of the array; 0 where there is a set
    std::unique_ptr<std::set<Key>> many;
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
    // Distances above the bound; keys below it wrap round to more than any of these.
    Key a = empty, b = empty;
    for (std::uint32_t i = 0; i < bin.count; i += group) {
      const Key* keys = bin.keys.get() + i;
      a = smaller(smaller(a, keys[0] - bound), keys[2] - bound);
      b = smaller(smaller(b, keys[1] - bound), keys[3] - bound);
    }
    const Key distance = smaller(a, b);
    return distance >= empty - bound ? none : bound + distance;
  }
  static Key smaller(Key a, Key b) { return b < a ? b : a; }

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
