// Expandable segments: address space for more than the card, filled with pages as needed.
#include <algorithm>

#include "run/allocator.h"

namespace shardfit::run {

/// Bytes of a free block and the unmapped room right behind it.
std::int64_t CachingAllocator::grown_size(BlockHandle handle) const {
  const Block& block = blocks_[handle];
  const bool room = block.next != none && blocks_[block.next].state == BlockState::unmapped;
  return block.size + (room ? blocks_[block.next].size : 0);
}

/// Whether a larger block has less room to grow. Where one of the two lies before the rest of the
/// address space, how long that is has a say: a shorter one may decide otherwise, or a longer one.
bool CachingAllocator::grows_less(BlockHandle larger, BlockHandle block) {
  const auto rest_follows = [&](BlockHandle h) {
    const BlockHandle next = blocks_[h].next;
    return next != none && blocks_[next].state == BlockState::unmapped &&
           blocks_[next].next == none;
  };
  const std::int64_t a = grown_size(larger), b = grown_size(block);
  const bool less = a < b;
  if (rest_follows(larger) == rest_follows(block)) return less;
  const BlockHandle last = rest_follows(larger) ? larger : block;
  if (less == (last == larger)) {
    const ExpandableSegment& segment = segments_[blocks_[last].segment];
    const std::int64_t more = last == larger ? b - a : a - b + 1;
    least_space_ = std::min(least_space_, expandable_space(total_, segment.page) + more);
  } else {
    const std::int64_t start = blocks_[last].address - segments_[blocks_[last].segment].address;
    most_space_ = std::max(most_space_, start + std::min(a, b) + 1);
  }
  return less;
}

/// From the best fit on: with expandable segments off the first ordinary block; otherwise a larger
/// one while it has less room to grow, so that holes fill before the growing end.
FreeBlocks::Key CachingAllocator::prefer_expandable(const Arena& arena, FreeBlocks::Key found,
                                                    bool expandable) {
  const auto is_expandable = [&](FreeBlocks::Key key) {
    return blocks_[FreeBlocks::handle_of(key)].segment != none;
  };
  while (found != FreeBlocks::none && is_expandable(found)) {
    const FreeBlocks::Key larger = arena.free.after(found);
    if (expandable && (larger == FreeBlocks::none ||
                       !grows_less(FreeBlocks::handle_of(larger), FreeBlocks::handle_of(found)))) {
      break;
    }
    found = larger;
  }
  return found;
}

/// Maps pages until a block of `size` bytes is free; it is in no free list then. no_block where the
/// driver refuses: what was mapped by then stays.
BlockHandle CachingAllocator::grow(Arena& arena, std::int64_t size) {
  BlockHandle block = find_room(arena, size);
  if (block == no_block) block = new_expandable(arena, size);
  const ExpandableSegment& segment = segments_[blocks_[block].segment];
  most_space_ = std::max(most_space_, blocks_[block].address - segment.address + size);
  if (blocks_[block].state == BlockState::unmapped) {
    block = map(block, std::min(blocks_[block].size, size));
  }
  while (block != no_block && blocks_[block].size < size) {
    const BlockHandle next = blocks_[block].next;
    block = map(next, std::min(size - blocks_[block].size, blocks_[next].size));
  }
  if (block != no_block) arena.free.erase(key_of(block));
  return block;
}

/// The lowest unmapped range, with a free block right before it, from which free and unmapped
/// blocks in a row have room for `size`.
BlockHandle CachingAllocator::find_room(const Arena& arena, std::int64_t size) const {
  const auto usable = [&](BlockHandle h) {
    return h != none &&
           (blocks_[h].state == BlockState::free || blocks_[h].state == BlockState::unmapped);
  };
  for (const BlockHandle unmapped : arena.unmapped) {
    const BlockHandle before = blocks_[unmapped].previous;
    const BlockHandle first = usable(before) ? before : unmapped;
    std::int64_t room = 0;
    for (BlockHandle h = first; room < size && usable(h); h = blocks_[h].next) {
      room += blocks_[h].size;
    }
    if (room >= size) return first;
  }
  return no_block;
}

/// A segment has no room for `size`: with how much more address space one would.
void CachingAllocator::needs_more_space(const Arena& arena, std::int64_t size) {
  if (arena.segments == 0) return;
  std::uint32_t open = 0;  // segments with room at their end
  std::int64_t least = size;
  for (const BlockHandle unmapped : arena.unmapped) {
    if (blocks_[unmapped].next != none) continue;
    ++open;
    std::int64_t room = 0;
    for (BlockHandle h = unmapped; h != none && blocks_[h].state != BlockState::allocated &&
                                   blocks_[h].state != BlockState::pending;
         h = blocks_[h].previous) {
      room += blocks_[h].size;
    }
    least = std::min(least, size - room);
  }
  if (open < arena.segments) least = 1;  // one is full
  const std::int64_t page = arena.pool->small ? driver_page : settings_.large_segment_size;
  least_space_ =
      std::min(least_space_, expandable_space(total_, page) + std::max<std::int64_t>(least, 1));
}

/// Address space of 1.125 times the card, nothing mapped.
BlockHandle CachingAllocator::new_expandable(Arena& arena, std::int64_t size) {
  needs_more_space(arena, size);
  const std::int64_t page = arena.pool->small ? driver_page : settings_.large_segment_size;
  const std::int64_t space = expandable_space(total_, page);
  const BlockHandle handle = new_block();
  Block& block = blocks_[handle];
  block = Block{};
  block.address = new_address(space);
  block.size = space;
  block.arena = &arena;
  block.segment = static_cast<std::uint32_t>(segments_.size());
  if (driver_) driver_->reserve(block.address, block.size);
  segments_.push_back({block.address, page});
  add_unmapped(handle);
  ++expandable_count_;
  ++arena.segments;
  plain_ = false;
  return handle;
}

/// Maps the pages that the first `size` bytes of an unmapped block touch; the free block they are
/// in then, or no_block and nothing changed.
BlockHandle CachingAllocator::map(BlockHandle handle, std::int64_t size) {
  const std::int64_t page = segments_[blocks_[handle].segment].page;
  const std::int64_t pages = (size + page - 1) / page;
  if (!take_from_driver(pages, page, blocks_[handle].address, page)) return no_block;
  const std::int64_t mapped = pages * page;
  remove_unmapped(handle);
  if (mapped < blocks_[handle].size) {
    const BlockHandle rest = new_block();
    Block& block = blocks_[handle];
    blocks_[rest] = Block{};
    blocks_[rest].address = block.address + mapped;
    blocks_[rest].size = block.size - mapped;
    blocks_[rest].arena = block.arena;
    blocks_[rest].segment = block.segment;
    blocks_[rest].previous = handle;
    blocks_[rest].next = block.next;
    if (block.next != none) blocks_[block.next].previous = rest;
    block.next = rest;
    block.size = mapped;
    add_unmapped(rest);
  }
  ++blocks_[handle].arena->pool->owner->segments;
  count_reserved(mapped);
  return cache_block(handle);
}

/// Gives back the whole pages inside a free block; what is left of it stays free. The unmapped
/// block that holds them then, or `handle` where there is no whole page.
BlockHandle CachingAllocator::unmap(BlockHandle handle) {
  const ExpandableSegment segment = segments_[blocks_[handle].segment];
  const std::int64_t start = blocks_[handle].address - segment.address;
  const std::int64_t end = start + blocks_[handle].size;
  const std::int64_t first = (start + segment.page - 1) / segment.page;
  const std::int64_t last = end / segment.page;
  if (first >= last) return handle;
  Arena& arena = *blocks_[handle].arena;
  arena.free.erase(key_of(handle));
  // A part before the pages or behind them becomes a block of its own.
  const auto keep = [&](std::int64_t from, std::int64_t bytes, bool before) {
    const BlockHandle part = new_block();
    Block& block = blocks_[handle];
    blocks_[part] = Block{};
    blocks_[part].address = segment.address + from;
    blocks_[part].size = bytes;
    blocks_[part].arena = &arena;
    blocks_[part].segment = block.segment;
    blocks_[part].state = BlockState::free;
    blocks_[part].cached_at = arena.pool->searches;
    blocks_[part].previous = before ? block.previous : handle;
    blocks_[part].next = before ? handle : block.next;
    if (blocks_[part].previous != none) blocks_[blocks_[part].previous].next = part;
    if (blocks_[part].next != none) blocks_[blocks_[part].next].previous = part;
    arena.free.insert(key_of(part));
  };
  if (first * segment.page > start) keep(start, first * segment.page - start, true);
  if (last * segment.page < end) keep(last * segment.page, end - last * segment.page, false);
  const std::int64_t bytes = (last - first) * segment.page;
  blocks_[handle].address = segment.address + first * segment.page;
  blocks_[handle].size = bytes;
  if (driver_) driver_->give(blocks_[handle].address, bytes, segment.page);
  device_ -= (last - first) * ((segment.page + driver_page - 1) / driver_page * driver_page);
  --arena.pool->owner->segments;
  stats_.current.reserved -= bytes;
  ++stats_.driver_frees;
  return merge_unmapped(handle);
}

/// Joins an unmapped block that is in no list with unmapped neighbours and lists the result.
BlockHandle CachingAllocator::merge_unmapped(BlockHandle handle) {
  const auto unmapped = [&](BlockHandle h) {
    return h != none && blocks_[h].state == BlockState::unmapped;
  };
  const BlockHandle before = blocks_[handle].previous;
  if (unmapped(before)) {
    remove_unmapped(before);
    blocks_[handle].address = blocks_[before].address;
    blocks_[handle].size += blocks_[before].size;
    blocks_[handle].previous = blocks_[before].previous;
    if (blocks_[handle].previous != none) blocks_[blocks_[handle].previous].next = handle;
    drop_block(before);
  }
  const BlockHandle after = blocks_[handle].next;
  if (unmapped(after)) {
    remove_unmapped(after);
    blocks_[handle].size += blocks_[after].size;
    blocks_[handle].next = blocks_[after].next;
    if (blocks_[handle].next != none) blocks_[blocks_[handle].next].previous = handle;
    drop_block(after);
  }
  add_unmapped(handle);
  return handle;
}

void CachingAllocator::add_unmapped(BlockHandle handle) {
  blocks_[handle].state = BlockState::unmapped;
  auto& list = blocks_[handle].arena->unmapped;
  const auto lower = [&](BlockHandle a, BlockHandle b) {
    return blocks_[a].address < blocks_[b].address;
  };
  list.insert(std::lower_bound(list.begin(), list.end(), handle, lower), handle);
}

void CachingAllocator::remove_unmapped(BlockHandle handle) {
  auto& list = blocks_[handle].arena->unmapped;
  list.erase(std::find(list.begin(), list.end(), handle));
}

}  // namespace shardfit::run
