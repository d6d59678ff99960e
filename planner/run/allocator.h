#pragma once
// PyTorch's CUDA caching allocator (release 2.13), replayed: who asks for which bytes in which
// order decides what is allocated, reserved and refused. Facts: c10/cuda/CUDACachingAllocator.cpp
// and the answers of that allocator itself (tests/data/allocator/README.md).

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/allocator_settings.h"
#include "run/free_blocks.h"
#include "run/out_of_memory.h"

namespace shardfit::run {

inline constexpr BlockHandle no_block = 0xffffffff;     // the allocation failed
inline constexpr BlockHandle empty_block = 0xfffffffe;  // zero bytes: nothing is held

/// Current bytes as torch.cuda.memory_stats() counts them (all in bytes, segments a count).
struct AllocatorLevels {
  std::int64_t allocated = 0;       // blocks handed out
  std::int64_t active = 0;          // these and blocks that wait for events
  std::int64_t reserved = 0;        // taken from the driver
  std::int64_t requested = 0;       // before rounding, of the active blocks
  std::int64_t segments = 0;        // driver segments; expandable ones are not counted
  std::int64_t inactive_split = 0;  // free parts of split segments; expandable ones left out

  bool operator==(const AllocatorLevels&) const = default;
};

struct AllocatorStats {
  AllocatorLevels current, peak;
  std::int64_t retries = 0;             // requests that reached the last resort (num_alloc_retries)
  std::int64_t ooms = 0;                // requests that failed there (num_ooms)
  std::int64_t rejections = 0;          // refused by throw_on_cudamalloc_oom
  std::int64_t driver_allocations = 0;  // cudaMalloc and cuMemMap calls
  std::int64_t driver_frees = 0;
  /// Oversize blocks that PyTorch would have given back although a part of them is in use; it
  /// aborts there (max_split_size_mb lowered in a running program). Kept here.
  std::int64_t split_blocks_kept = 0;

  bool operator==(const AllocatorStats&) const = default;
};

enum class BlockState : std::uint8_t { free, allocated, pending, unmapped, unused };

/// One block of a segment, for a layout.
struct BlockView {
  std::int64_t size = 0;
  std::int64_t requested = 0;  // 0 in free blocks
  BlockHandle handle = no_block;
  BlockState state = BlockState::free;
};

/// One driver segment or one mapped range of an expandable segment; blocks by address.
struct SegmentView {
  std::int64_t address = 0, size = 0;
  std::uint32_t stream = 0;
  std::uint32_t pool = 0;  // label of its MemPool, 0 for the default pool
  bool small = false, expandable = false;
  std::vector<BlockView> blocks;
};

/// What the allocator does to the driver, for a replay on a real device. Addresses are the
/// allocator's own: ascending, never used twice, in pages of 2 MiB.
struct DriverCalls {
  virtual ~DriverCalls() = default;
  /// A segment (page 0), or pages of `page` bytes inside address space that was reserved. False
  /// where the driver has no memory; then nothing was taken.
  virtual bool take(std::int64_t address, std::int64_t bytes, std::int64_t page) = 0;
  virtual void give(std::int64_t address, std::int64_t bytes, std::int64_t page) = 0;
  /// Address space of an expandable segment.
  virtual void reserve(std::int64_t address, std::int64_t bytes) = 0;
  virtual void unreserve(std::int64_t address) = 0;
};

/// Capacities (total less context) from `from` on and below `below`.
struct CapacityRange {
  std::int64_t from = 0, below = 0;
  bool holds(std::int64_t capacity) const { return capacity >= from && capacity < below; }
};

/// How an allocator stands: alike where every later call would be answered alike. 128 bits of a
/// hash over all blocks.
struct AllocatorStanding {
  std::uint64_t first = 0, second = 0;
  bool operator==(const AllocatorStanding&) const = default;
};

/// The allocator of one device. Not thread-safe. Same calls, same answers.
class CachingAllocator {
 public:
  static constexpr std::int64_t largest_total = std::int64_t{1} << 48;  // "no limit" for a replay
  static constexpr std::int64_t largest_request = std::int64_t{1} << 61;
  static constexpr std::uint32_t stream_limit = 1 << 16;

  /// total: bytes of the card as the runtime reports them (up to largest_total); context: bytes in
  /// use outside the allocator; fraction: of set_per_process_memory_fraction, if it was called.
  /// Throws std::invalid_argument for sizes outside their range.
  CachingAllocator(std::int64_t total, std::int64_t context, const AllocatorSettings& settings = {},
                   std::optional<double> fraction = std::nullopt);
  /// This allocator as it would stand on another card, one of the same capacities; null
  /// where the address space of expandable segments would end elsewhere.
  std::unique_ptr<CachingAllocator> on_card(std::int64_t total, std::int64_t context) const;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// A block of at least `bytes` for `stream` (0 = the default stream, below stream_limit): its
  /// handle, empty_block for 0 bytes, or no_block; then out_of_memory() says why. A handle may be
  /// given again once its block was freed. Throws std::invalid_argument for negative bytes
  /// and those above largest_request.
  BlockHandle allocate(std::int64_t bytes, std::uint32_t stream = 0) {
    if (bytes <= 0 || bytes > largest_request || stream >= stream_limit) {
      return allocate_odd(bytes, stream);
    }
    if (!events_.empty()) process_events();
    const std::int64_t size = rounds_up_ ? round_request(bytes, settings_)
                                         : (bytes + FreeBlocks::unit - 1) & -FreeBlocks::unit;
    Arena& arena = arena_for(size <= small_size, stream);
    const FreeBlocks::Key found =
        plain_ ? arena.free.best_fit(size) : find_free(arena, size, settings_.expandable_segments);
    if (found == FreeBlocks::none) return allocate_new(arena, size, bytes);
    return hand_out(arena, found, size, bytes);
  }

  /// Gives the block back; empty_block and no_block are ignored. Throws std::invalid_argument for a
  /// handle that is not allocated.
  void free(BlockHandle handle) {
    if (handle >= blocks_.size() || blocks_[handle].state != BlockState::allocated) {
      return free_odd(handle);
    }
    Block& block = blocks_[handle];
    stats_.current.allocated -= block.size;
    if (block.uses != none) return record_events(handle);
    release_active(handle);
  }

  /// The block is used on `stream` too: after free() it waits for that stream.
  void record_stream(BlockHandle handle, std::uint32_t stream);

  void empty_cache();

  /// Events recorded from here on do not complete until complete_events().
  void hold_events();
  void complete_events();

  /// Requests go to MemPool `label` (> 0, created when it is new) until leave_pool; the pool
  /// entered last that is not left receives them. Flags count when the pool is created. Throws
  /// std::invalid_argument for a pool that is entered already, or left or deleted out of turn.
  void enter_pool(std::uint32_t label, bool use_on_oom = false, bool no_split = false);
  void leave_pool(std::uint32_t label);
  /// The MemPool object is gone: what it cached goes back; a pool of that label is new afterwards.
  void delete_pool(std::uint32_t label);

  /// The result of parse_allocator_settings(text, settings()).
  /// per_process_memory_fraction is not applied: PyTorch reads it at its start only.
  void set_settings(const AllocatorSettings& settings);
  const AllocatorSettings& settings() const { return settings_; }
  /// Of the total, 0 to 1; 1 takes the limit away.
  void set_fraction(double fraction);
  void reset_peaks() { stats_.peak = stats_.current; }
  /// Follows every call of the driver from now on; what it refuses is out of memory.
  void set_driver(DriverCalls* calls) { driver_ = calls; }

  const AllocatorStats& stats() const { return stats_; }
  std::int64_t total() const { return total_; }
  std::int64_t context() const { return context_; }
  /// With any of these every call so far would have gone the same way. Empty where settings count
  /// in shares of the total.
  CapacityRange same_capacities() const;
  /// The same where the total stays and what is in use outside the allocator changes.
  CapacityRange same_on_card() const;
  /// Bytes that an allocated block was asked for and takes.
  std::int64_t requested_bytes(BlockHandle handle) const { return blocks_[handle].requested; }
  std::int64_t block_bytes(BlockHandle handle) const { return blocks_[handle].size; }
  std::int64_t block_address(BlockHandle handle) const { return blocks_[handle].address; }
  /// About the last allocation that failed.
  const OutOfMemory& out_of_memory() const { return failure_; }
  /// `owners` says by handle what a block holds; of those from `floor` on so much is taken away.
  /// Nothing where blocks wait for events or are used on other streams, or where ages count.
  std::optional<AllocatorStanding> standing(const std::vector<std::uint32_t>& owners,
                                            std::uint32_t floor, std::uint32_t less) const;
  /// Every segment by address.
  std::vector<SegmentView> layout() const;

 private:
  CachingAllocator(const CachingAllocator&) = default;  // pointers still lead into the other
  void lead_pointers_here(const CachingAllocator& other);
  bool move_ends(std::int64_t total);

  static constexpr std::uint32_t none = 0xffffffff;
  static constexpr std::int64_t small_size = 1 << 20;   // the largest request of a small pool
  static constexpr std::int64_t driver_page = 2 << 20;  // also a small segment, a small page

  struct PrivatePool;
  struct BlockPool;
  /// Blocks of one pool and stream.
  struct Arena {
    FreeBlocks free;
    std::vector<BlockHandle> unmapped;  // ranges of expandable segments, by address
    BlockPool* pool = nullptr;
    std::int64_t cut_from = 0;  // remainders from this size on are split off
    std::uint32_t stream = 0;
    bool fine = false;           // splits whatever max_split_size says
    std::uint32_t segments = 0;  // expandable ones
  };
  struct BlockPool {
    PrivatePool* owner = nullptr;
    std::vector<Arena*> arenas;  // by stream, null where none is yet
    std::uint32_t searches = 0;  // counted while garbage collection is on
    bool small = false;
  };
  struct PrivatePool {
    BlockPool small, large;
    std::uint32_t label = 0;    // 0: the default pool
    std::int64_t segments = 0;  // driver allocations minus frees
    bool use_on_oom = false, no_split = false;
    bool freeable = false;   // its MemPool is gone
    bool registered = true;  // false once it was empty after that
  };
  struct alignas(64) Block {
    std::int64_t address = 0, size = 0, requested = 0;
    Arena* arena = nullptr;
    std::uint32_t cached_at = 0;                 // searches of its pool when it became free
    std::uint32_t previous = none, next = none;  // neighbours in the segment
    std::uint32_t segment = none;                // expandable segment
    std::uint32_t uses = none;                   // streams recorded, head of a list
    std::uint32_t events = 0;                    // outstanding
    BlockState state = BlockState::unused;
    bool split() const { return previous != none || next != none; }
  };
  struct StreamUse {
    std::uint32_t stream, next;
  };
  struct Event {
    std::uint64_t serial;
    BlockHandle block;
  };
  struct ExpandableSegment {
    std::int64_t address = 0, page = 0;
  };

  Arena& arena_for(bool small, std::uint32_t stream) {
    BlockPool& pool = small ? current_->small : current_->large;
    if (stream < pool.arenas.size() && pool.arenas[stream] != nullptr) return *pool.arenas[stream];
    return new_arena(pool, stream);
  }
  FreeBlocks::Key key_of(BlockHandle h) const {
    return FreeBlocks::key(blocks_[h].size, blocks_[h].address, h);
  }

  // allocator.cc: the common path
  BlockHandle allocate_odd(std::int64_t bytes, std::uint32_t stream);
  void free_odd(BlockHandle handle) const;
  FreeBlocks::Key find_free(Arena& arena, std::int64_t size, bool expandable);
  BlockHandle hand_out(Arena& arena, FreeBlocks::Key found, std::int64_t size, std::int64_t bytes);
  BlockHandle hand_out_taken(BlockHandle handle, std::int64_t size, std::int64_t bytes,
                             bool expandable);
  void count_handed_out(Block& block, std::int64_t bytes);
  bool cuts(const Arena& arena, std::int64_t size, std::int64_t rest, bool expandable) const;
  BlockHandle split_front(BlockHandle handle, std::int64_t size);
  void release_active(BlockHandle handle);
  BlockHandle cache_block(BlockHandle handle);
  BlockHandle new_block();
  void drop_block(BlockHandle handle);
  Arena& new_arena(BlockPool& pool, std::uint32_t stream);
  void derive_settings();

  // allocator_segments.cc: getting segments and giving them back
  BlockHandle allocate_new(Arena& arena, std::int64_t size, std::int64_t bytes);
  BlockHandle new_segment(Arena& arena, std::int64_t size, std::int64_t segment_bytes);
  BlockHandle take_from_pools(std::int64_t size, std::uint32_t stream);
  BlockHandle fail(std::int64_t segment_bytes, std::int64_t bytes);
  std::int64_t segment_bytes(std::int64_t size) const;
  bool take_from_driver(std::int64_t bytes, std::int64_t each, std::int64_t address,
                        std::int64_t page);
  std::int64_t new_address(std::int64_t bytes);
  void release_segment(BlockHandle handle);
  void release_pool(BlockPool& pool);
  void release_cached();
  bool release_oversize(Arena& arena, std::int64_t size);
  void collect_garbage();
  void count_reserved(std::int64_t bytes);

  // allocator_expandable.cc
  BlockHandle grow(Arena& arena, std::int64_t size);
  BlockHandle find_room(const Arena& arena, std::int64_t size) const;
  BlockHandle new_expandable(Arena& arena, std::int64_t size);
  void needs_more_space(const Arena& arena, std::int64_t size);
  /// Address space of an expandable segment: 9/8 of the card, in whole pages.
  static std::int64_t expandable_space(std::int64_t total, std::int64_t page) {
    return (total + total / 8 + page - 1) / page * page;
  }
  BlockHandle map(BlockHandle handle, std::int64_t size);
  BlockHandle unmap(BlockHandle handle);
  BlockHandle merge_unmapped(BlockHandle handle);
  void add_unmapped(BlockHandle handle);
  void remove_unmapped(BlockHandle handle);
  FreeBlocks::Key prefer_expandable(const Arena& arena, FreeBlocks::Key found, bool expandable);
  bool grows_less(BlockHandle larger, BlockHandle block);
  std::int64_t grown_size(BlockHandle handle) const;

  // allocator_streams.cc: events, streams and pools
  void record_events(BlockHandle handle);
  void process_events();
  void wait_for_events(const PrivatePool* of = nullptr);
  void finish_event(BlockHandle handle);
  PrivatePool* pool_of(std::uint32_t label);

  AllocatorSettings settings_;
  AllocatorStats stats_;
  std::vector<Block> blocks_;
  std::vector<BlockHandle> spare_blocks_;
  PrivatePool* current_ = nullptr;  // where requests go
  bool plain_ = true;               // best fit is all there is to a search
  bool rounds_up_ = false;
  bool collects_ = false;
  std::deque<Event> events_;

  DriverCalls* driver_ = nullptr;
  std::int64_t total_, context_;
  std::int64_t device_ = 0;       // taken from the driver, in its pages
  std::int64_t most_device_ = 0;  // the highest so far
  std::int64_t least_refused_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_space_ = 0;    // used of an expandable segment's address space
  /// Address space of a segment with which something would have gone another way.
  std::int64_t least_space_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t next_address_ = 0;  // ascending, never used twice
  std::optional<std::int64_t> limit_;
  bool rejected_ = false;
  OutOfMemory failure_;

  std::deque<Arena> arenas_;
  std::deque<PrivatePool> pools_;  // the default pool first
  std::vector<PrivatePool*> entered_;
  std::vector<StreamUse> uses_;
  std::uint32_t spare_use_ = none;
  std::uint64_t serial_ = 0;
  std::optional<std::uint64_t> held_from_;  // events above it stay incomplete
  std::vector<ExpandableSegment> segments_;
  std::uint32_t expandable_count_ = 0;
};

}  // namespace shardfit::run
