#pragma once
// The free blocks of one pool and stream, in the allocator's order: (size, address).

#include <cstdint>
#include <cstring>
#include <vector>

namespace shardfit::run {

/// Index of a block in the allocator's table; stable while the block is allocated.
using BlockHandle = std::uint32_t;

/// A sorted array cut into chunks of at most 64 keys, so that a lookup is one or two short binary
/// searches without branches and an update moves at most one chunk. Training programs keep some
/// 5 to 300 free blocks a pool; a hundred thousand stay workable.
class FreeBlocks {
 public:
  /// size / 512 (41 bits), address / 512 (55 bits), handle (32 bits): ordered as a number.
  __extension__ using Key = unsigned __int128;

  struct Position {
    std::uint32_t chunk, index;
  };

  static constexpr std::int64_t unit = 512;  // every block size and address is a multiple of it

  static Key key(std::int64_t size, std::int64_t address, BlockHandle handle) {
    return (static_cast<Key>(static_cast<std::uint64_t>(size) / unit) << 87) |
           (static_cast<Key>(static_cast<std::uint64_t>(address) / unit) << 32) | handle;
  }
  static BlockHandle handle_of(Key key) { return static_cast<BlockHandle>(key); }
  static std::int64_t size_of(Key key) { return static_cast<std::int64_t>(key >> 87) * unit; }

  FreeBlocks() {
    chunks_.emplace_back();
    order_.push_back({0, 0, 0});
  }

  bool empty() const { return order_.size() == 1 && order_[0].count == 0; }

  /// The smallest block of at least `size` bytes, the lowest address among equals; or end.
  Position lower_bound(std::int64_t size) const {
    const Key wanted = static_cast<Key>(static_cast<std::uint64_t>(size) / unit) << 87;
    Position p = search(wanted);
    if (p.index == order_[p.chunk].count) p = {p.chunk + 1, 0};
    return p;
  }
  /// The place of a key that is inside.
  Position find(Key key) const { return search(key); }

  Position first() const { return empty() ? Position{1, 0} : Position{0, 0}; }
  bool is_end(Position p) const {
    return p.chunk == order_.size() || p.index == order_[p.chunk].count;
  }
  Key at(Position p) const { return chunks_[order_[p.chunk].chunk].keys[p.index]; }

  Position next(Position p) const {
    return p.index + 1 < order_[p.chunk].count ? Position{p.chunk, p.index + 1}
                                               : Position{p.chunk + 1, 0};
  }
  /// False at the first key.
  bool previous(Position& p) const {
    if (p.chunk < order_.size() && p.index > 0) {
      --p.index;
      return true;
    }
    if (p.chunk == 0 || empty()) return false;
    --p.chunk;
    p.index = order_[p.chunk].count - 1;
    return true;
  }

  void insert(Key key) {
    Position p = search(key);
    if (order_[p.chunk].count == capacity) {
      split(p.chunk);
      p = search(key);
    }
    Entry& entry = order_[p.chunk];
    Key* keys = chunks_[entry.chunk].keys;
    std::memmove(keys + p.index + 1, keys + p.index, (entry.count - p.index) * sizeof(Key));
    keys[p.index] = key;
    ++entry.count;
  }

  void erase(Position p) {
    Entry& entry = order_[p.chunk];
    Key* keys = chunks_[entry.chunk].keys;
    --entry.count;
    std::memmove(keys + p.index, keys + p.index + 1, (entry.count - p.index) * sizeof(Key));
    if (entry.count == 0 && order_.size() > 1) drop(p.chunk);
  }
  void erase(Key key) { erase(find(key)); }

  /// erase(p) and insert(key) in one move where the key stays in its chunk.
  void replace(Position p, Key key) {
    Entry& entry = order_[p.chunk];
    const bool below = key < entry.lowest;
    const bool above = p.chunk + 1 < order_.size() && key >= order_[p.chunk + 1].lowest;
    if (below || above) {
      erase(p);
      insert(key);
      return;
    }
    Key* keys = chunks_[entry.chunk].keys;
    const std::uint32_t i = search_chunk(keys, entry.count, key);
    if (i <= p.index) {
      std::memmove(keys + i + 1, keys + i, (p.index - i) * sizeof(Key));
      keys[i] = key;
    } else {
      std::memmove(keys + p.index, keys + p.index + 1, (i - 1 - p.index) * sizeof(Key));
      keys[i - 1] = key;
    }
  }

 private:
  static constexpr std::uint32_t capacity = 64;
  struct Chunk {
    Key keys[capacity];
  };
  /// Keys of chunk i lie in [order_[i].lowest, order_[i + 1].lowest); order_[0].lowest is 0.
  struct Entry {
    Key lowest;
    std::uint32_t chunk, count;
  };

  static std::uint32_t search_chunk(const Key* keys, std::uint32_t count, Key wanted) {
    const Key* base = keys;
    std::uint32_t n = count;
    while (n > 1) {
      const std::uint32_t half = n / 2;
      base += base[half - 1] < wanted ? half : 0;
      n -= half;
    }
    return static_cast<std::uint32_t>(base - keys) + (n == 1 && *base < wanted ? 1 : 0);
  }

  /// Chunk whose range holds the key, and the first index there that is not below it.
  Position search(Key wanted) const {
    std::uint32_t chunk = 0;
    for (std::uint32_t n = static_cast<std::uint32_t>(order_.size()); n > 1;) {
      const std::uint32_t half = n / 2;
      chunk += order_[chunk + half].lowest <= wanted ? half : 0;
      n -= half;
    }
    const Entry& entry = order_[chunk];
    return {chunk, search_chunk(chunks_[entry.chunk].keys, entry.count, wanted)};
  }

  void split(std::uint32_t at) {
    std::uint32_t fresh;
    if (spare_.empty()) {
      fresh = static_cast<std::uint32_t>(chunks_.size());
      chunks_.emplace_back();
    } else {
      fresh = spare_.back();
      spare_.pop_back();
    }
    constexpr std::uint32_t half = capacity / 2;
    const Key* from = chunks_[order_[at].chunk].keys + half;
    std::memcpy(chunks_[fresh].keys, from, (capacity - half) * sizeof(Key));
    order_[at].count = half;
    order_.insert(order_.begin() + at + 1, {chunks_[fresh].keys[0], fresh, capacity - half});
  }

  void drop(std::uint32_t at) {
    spare_.push_back(order_[at].chunk);
    order_.erase(order_.begin() + at);
    order_[0].lowest = 0;
  }

  std::vector<Chunk> chunks_;
  std::vector<Entry> order_;
  std::vector<std::uint32_t> spare_;
};

}  // namespace shardfit::run
