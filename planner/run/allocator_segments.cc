// Getting segments from the driver and giving them back: what happens when no free block fits.
#include <algorithm>

#include "base/units.h"
#include "run/allocator.h"

namespace shardfit::run {

namespace {
std::int64_t round_up(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }
}  // namespace

std::int64_t CachingAllocator::segment_bytes(std::int64_t size) const {
  constexpr std::int64_t own_segment_from = 10 << 20;
  if (size <= small_size) return driver_page;
  if (size < own_segment_from) return settings_.large_segment_size;
  return round_up(size, driver_page);
}

/// Garbage collection, driver, MemPools, oversize blocks, everything cached: in that order.
BlockHandle CachingAllocator::allocate_new(Arena& arena, std::int64_t size, std::int64_t bytes) {
  if (collects_) collect_garbage();
  const std::int64_t segment = segment_bytes(size);
  rejected_ = false;
  BlockHandle block = new_segment(arena, size, segment);
  if (block == no_block && !rejected_ && current_ == &pools_.front()) {
    block = take_from_pools(size, arena.stream);
    if (block != no_block) return hand_out_taken(block, size, bytes, false);
  }
  if (block == no_block && !rejected_ && release_oversize(arena, size)) {
    block = new_segment(arena, size, segment);
  }
  if (block == no_block && !rejected_) {
    release_cached();
    ++stats_.retries;
    block = new_segment(arena, size, segment);
  }
  if (block == no_block) return fail(segment, bytes);
  return hand_out_taken(block, size, bytes, settings_.expandable_segments);
}

/// A block that is in no free list, or no_block.
BlockHandle CachingAllocator::new_segment(Arena& arena, std::int64_t size, std::int64_t segment) {
  if (limit_ && stats_.current.reserved + segment > *limit_) return no_block;
  if (settings_.throw_on_cudamalloc_oom) {
    const double allowed = settings_.per_process_memory_fraction * static_cast<double>(total_);
    if (stats_.current.reserved + segment > static_cast<std::int64_t>(allowed)) {
      rejected_ = true;
      return no_block;
    }
  }
  if (settings_.expandable_segments) return grow(arena, size);
  if (!take_from_driver(1, segment, next_address_, 0)) return no_block;
  const BlockHandle handle = new_block();
  Block& block = blocks_[handle];
  block = Block{};
  block.address = new_address(segment);
  block.size = segment;
  block.arena = &arena;
  block.state = BlockState::free;
  ++arena.pool->owner->segments;
  ++stats_.current.segments;
  stats_.peak.segments = std::max(stats_.peak.segments, stats_.current.segments);
  count_reserved(segment);
  return handle;
}

/// `count` allocations of `each` bytes at an address, all or none.
bool CachingAllocator::take_from_driver(std::int64_t count, std::int64_t each, std::int64_t address,
                                        std::int64_t page) {
  const std::int64_t pages = round_up(each, driver_page);
  const std::int64_t room = total_ - context_ - device_;
  if (room < 0 || count > room / pages) {
    least_refused_ = std::min(least_refused_, device_ + count * pages);
    return false;
  }
  if (driver_ && !driver_->take(address, count * each, page)) return false;
  device_ += count * pages;
  most_device_ = std::max(most_device_, device_);
  return true;
}

CapacityRange CachingAllocator::same_capacities() const {
  const std::int64_t capacity = total_ - context_;
  if (limit_ || settings_.throw_on_cudamalloc_oom) return {capacity, capacity};
  // Address space is 9/8 of the total, which is no less than the capacity, in whole pages.
  const std::int64_t for_space = (most_space_ / 9 + 1) * 8;
  std::int64_t below = least_refused_;
  if (least_space_ != std::numeric_limits<std::int64_t>::max()) {
    const std::int64_t page = std::max(driver_page, settings_.large_segment_size);
    below = std::min(below, (least_space_ - page) / 9 * 8 - context_);
  }
  return {std::max(most_device_, most_space_ > 0 ? for_space : 0), below};
}

CapacityRange CachingAllocator::same_on_card() const {
  if (limit_ || settings_.throw_on_cudamalloc_oom) return same_capacities();
  return {most_device_, least_refused_};
}

std::int64_t CachingAllocator::new_address(std::int64_t bytes) {
  const std::int64_t address = next_address_;
  next_address_ = checked_add(next_address_, round_up(bytes, driver_page));
  return address;
}

/// Bytes that came from the driver, in one call of it.
void CachingAllocator::count_reserved(std::int64_t bytes) {
  stats_.current.reserved += bytes;
  stats_.peak.reserved = std::max(stats_.peak.reserved, stats_.current.reserved);
  ++stats_.driver_allocations;
}

/// From a MemPool with use_on_oom. PyTorch keeps them in a hash set (c10/util/flat_hash_map.h) and
/// asks them in its order: by their serial number times 2^64 over the golden ratio. Such a request
/// does not follow the rules of expandable segments, and takes none of their blocks.
BlockHandle CachingAllocator::take_from_pools(std::int64_t size, std::uint32_t stream) {
  std::vector<std::pair<std::uint64_t, PrivatePool*>> candidates;
  for (std::size_t serial = 1; serial < pools_.size(); ++serial) {
    if (!pools_[serial].use_on_oom || pools_[serial].freeable) continue;
    candidates.emplace_back(serial * 0x9E3779B97F4A7C15U, &pools_[serial]);
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [order, pool] : candidates) {
    BlockPool& blocks = size <= small_size ? pool->small : pool->large;
    if (stream >= blocks.arenas.size() || blocks.arenas[stream] == nullptr) continue;
    Arena& arena = *blocks.arenas[stream];
    const FreeBlocks::Key found = find_free(arena, size, false);
    if (found == FreeBlocks::none) continue;
    arena.free.erase(found);
    return FreeBlocks::handle_of(found);
  }
  return no_block;
}

BlockHandle CachingAllocator::fail(std::int64_t segment, std::int64_t bytes) {
  failure_ = OutOfMemory{};
  failure_.kind = rejected_ ? OutOfMemory::Kind::rejected : OutOfMemory::Kind::out_of_memory;
  ++(rejected_ ? stats_.rejections : stats_.ooms);
  for (const PrivatePool& pool : pools_) {
    if (pool.label == 0 || !pool.registered) continue;
    for (const BlockPool* blocks : {&pool.small, &pool.large}) {
      for (const Arena* arena : blocks->arenas) {
        if (arena == nullptr) continue;
        for (const FreeBlocks::Key key : arena->free.keys()) {
          failure_.private_pools += FreeBlocks::size_of(key);
        }
      }
    }
  }
  const AllocatorLevels& now = stats_.current;
  failure_.requested = bytes;
  failure_.tried = segment;
  failure_.total = total_;
  failure_.free = total_ - context_ - device_;
  failure_.in_use = context_ + device_;
  failure_.allowed = limit_;
  failure_.allocated = now.allocated + failure_.private_pools;
  failure_.unallocated = now.reserved - failure_.allocated;
  return no_block;
}

/// An unsplit block in no free list goes back to the driver.
void CachingAllocator::release_segment(BlockHandle handle) {
  const Block& block = blocks_[handle];
  if (driver_) driver_->give(block.address, block.size, 0);
  device_ -= round_up(block.size, driver_page);
  --block.arena->pool->owner->segments;
  stats_.current.reserved -= block.size;
  --stats_.current.segments;
  ++stats_.driver_frees;
  drop_block(handle);
}

/// Gives back every unsplit segment and unmaps every whole free page.
void CachingAllocator::release_pool(BlockPool& pool) {
  for (Arena* arena : pool.arenas) {
    if (arena == nullptr) continue;
    std::vector<BlockHandle> whole, expandable;
    for (const FreeBlocks::Key key : arena->free.keys()) {
      const BlockHandle handle = FreeBlocks::handle_of(key);
      const Block& block = blocks_[handle];
      if (block.segment != none) {
        expandable.push_back(handle);
      } else if (!block.split()) {
        whole.push_back(handle);
      }
    }
    for (const BlockHandle handle : whole) {
      arena->free.erase(key_of(handle));
      release_segment(handle);
    }
    for (const BlockHandle handle : expandable) {
      const BlockHandle rest = unmap(handle);
      const Block& block = blocks_[rest];
      if (block.split() || block.state != BlockState::unmapped) continue;
      if (driver_) driver_->unreserve(block.address);
      remove_unmapped(rest);  // nothing is mapped in its segment: the address space goes back
      drop_block(rest);
      --expandable_count_;
      --arena->segments;
    }
  }
}

void CachingAllocator::release_cached() {
  wait_for_events();
  release_pool(pools_.front().large);
  release_pool(pools_.front().small);
  for (PrivatePool& pool : pools_) {
    if (!pool.freeable || !pool.registered) continue;
    release_pool(pool.small);
    release_pool(pool.large);
    if (pool.segments == 0) pool.registered = false;
  }
  derive_settings();
}

void CachingAllocator::empty_cache() { release_cached(); }

/// With max_split_size: one oversize block of the stream that is as large as the request, else
/// from the largest down until their sum is. False where that does not suffice.
bool CachingAllocator::release_oversize(Arena& arena, std::int64_t size) {
  if (settings_.max_split_size == AllocatorSettings::unlimited) return false;
  const std::int64_t needed = std::max(size, settings_.max_split_size);
  std::vector<BlockHandle> chosen;
  std::int64_t sum = 0;
  const auto take = [&](BlockHandle handle) {
    if (blocks_[handle].split()) {
      ++stats_.split_blocks_kept;
      return;
    }
    sum += blocks_[handle].size;
    chosen.push_back(handle);
  };
  if (const FreeBlocks::Key enough = arena.free.best_fit(needed); enough != FreeBlocks::none) {
    const BlockHandle handle = FreeBlocks::handle_of(enough);
    if (blocks_[handle].segment != none) return false;
    take(handle);
  } else {
    FreeBlocks::Key key = arena.free.before(FreeBlocks::bound(needed));
    for (; sum < needed && key != FreeBlocks::none; key = arena.free.before(key)) {
      const BlockHandle handle = FreeBlocks::handle_of(key);
      if (blocks_[handle].size < settings_.max_split_size) break;
      if (blocks_[handle].segment == none) take(handle);
    }
  }
  for (const BlockHandle handle : chosen) {
    arena.free.erase(key_of(handle));
    release_segment(handle);
  }
  return sum >= needed;
}

/// Rounds over the unsplit large blocks of the default pool: those at least as old as the mean age
/// go, until reserved is below the threshold or a round frees nothing.
void CachingAllocator::collect_garbage() {
  const double allowed = static_cast<double>(*limit_);
  const auto threshold =
      static_cast<std::int64_t>(settings_.garbage_collection_threshold * allowed);
  if (stats_.current.reserved <= threshold) return;
  const std::int64_t target = stats_.current.reserved - threshold;
  BlockPool& pool = pools_.front().large;
  const auto age = [&](BlockHandle h) {
    return static_cast<double>(pool.searches - blocks_[h].cached_at);
  };
  std::vector<BlockHandle> whole;
  double ages = 0;
  for (const Arena* arena : pool.arenas) {
    if (arena == nullptr) continue;
    for (const FreeBlocks::Key key : arena->free.keys()) {
      const BlockHandle handle = FreeBlocks::handle_of(key);
      if (blocks_[handle].split()) continue;
      whole.push_back(handle);
      ages += age(handle);
    }
  }
  std::int64_t freed = 0;
  for (bool again = true; again && !whole.empty() && freed < target;) {
    const double mean = ages / static_cast<double>(whole.size());
    again = false;
    std::vector<BlockHandle> kept;
    for (const BlockHandle handle : whole) {
      if (blocks_[handle].segment != none || age(handle) < mean) {
        kept.push_back(handle);
        continue;
      }
      again = true;
      freed += blocks_[handle].size;
      ages -= age(handle);
      blocks_[handle].arena->free.erase(key_of(handle));
      release_segment(handle);
    }
    whole.swap(kept);
  }
}

}  // namespace shardfit::run
