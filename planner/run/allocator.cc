#include "run/allocator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace shardfit::run {

CachingAllocator::CachingAllocator(std::int64_t total, std::int64_t context,
                                   const AllocatorSettings& settings,
                                   std::optional<double> fraction)
    : settings_(settings), total_(total), context_(context) {
  if (total < 0 || total > largest_total) throw std::invalid_argument("total bytes of the device");
  if (context < 0 || context > largest_total) throw std::invalid_argument("context bytes");
  pools_.emplace_back();
  current_ = &pools_.front();
  current_->small.small = true;
  current_->small.owner = current_->large.owner = current_;
  derive_settings();
  set_fraction(settings.per_process_memory_fraction);
  if (fraction) set_fraction(*fraction);
}

void CachingAllocator::set_settings(const AllocatorSettings& settings) {
  settings_ = settings;
  derive_settings();
}

void CachingAllocator::set_fraction(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) throw std::invalid_argument("memory fraction");
  limit_.reset();
  if (fraction < 1) limit_ = std::llround(fraction * static_cast<double>(total_));
  derive_settings();
}

/// What the common path asks of the settings, worked out once.
void CachingAllocator::derive_settings() {
  rounds_up_ = std::any_of(settings_.roundup_shift.begin(), settings_.roundup_shift.end(),
                           [](std::uint8_t shift) { return shift > 0; });
  collects_ = limit_.has_value() && settings_.garbage_collection_threshold > 0;
  plain_ = !collects_ && settings_.max_split_size == AllocatorSettings::unlimited &&
           expandable_count_ == 0 && !settings_.expandable_segments;
  for (Arena& arena : arenas_) {
    arena.fine = arena.pool->small || settings_.expandable_segments;
    arena.cut_from = arena.fine ? FreeBlocks::unit : small_size + 1;
    if (arena.pool->owner->no_split) arena.cut_from = AllocatorSettings::unlimited;
  }
}

CachingAllocator::Arena& CachingAllocator::new_arena(BlockPool& pool, std::uint32_t stream) {
  if (stream >= pool.arenas.size()) pool.arenas.resize(stream + 1, nullptr);
  Arena& arena = arenas_.emplace_back();
  arena.pool = &pool;
  arena.stream = stream;
  pool.arenas[stream] = &arena;
  derive_settings();
  return arena;
}

BlockHandle CachingAllocator::allocate_odd(std::int64_t bytes, std::uint32_t stream) {
  if (bytes < 0 || bytes > largest_request) throw std::invalid_argument("bytes of a request");
  if (stream >= stream_limit) throw std::invalid_argument("stream of a request");
  return empty_block;
}

void CachingAllocator::free_odd(BlockHandle handle) const {
  if (handle == empty_block || handle == no_block) return;
  throw std::invalid_argument("free of a block that is not allocated");
}

/// Best fit: smallest block, lowest address; with what expandable segments and max_split_size say.
FreeBlocks::Key CachingAllocator::find_free(Arena& arena, std::int64_t size, bool expandable) {
  if (collects_) ++arena.pool->searches;
  FreeBlocks::Key found = arena.free.best_fit(size);
  if (expandable_count_ > 0) found = prefer_expandable(arena, found, expandable);
  if (found == FreeBlocks::none) return found;
  const std::int64_t bytes = FreeBlocks::size_of(found);
  const std::int64_t oversize = settings_.max_split_size;
  const bool fits =
      size < oversize ? bytes < oversize || oversize == AllocatorSettings::unlimited
                      : bytes < size + std::min(settings_.max_non_split_rounding, largest_request);
  return fits ? found : FreeBlocks::none;
}

/// Whether a remainder is split off; `expandable`: the request follows their rules.
bool CachingAllocator::cuts(const Arena& arena, std::int64_t size, std::int64_t rest,
                            bool expandable) const {
  if (arena.pool->owner->no_split) return false;
  if (arena.pool->small || expandable) return rest >= FreeBlocks::unit;
  return size < settings_.max_split_size && rest > small_size;
}

/// Takes a free block out of the free list, or its front: the remainder stays.
BlockHandle CachingAllocator::hand_out(Arena& arena, FreeBlocks::Key found, std::int64_t size,
                                       std::int64_t bytes) {
  const BlockHandle handle = FreeBlocks::handle_of(found);
  const bool splits = FreeBlocks::size_of(found) - size >= arena.cut_from &&
                      (size < settings_.max_split_size || arena.fine);
  if (splits) {
    const BlockHandle front = split_front(handle, size);
    arena.free.replace(found, key_of(handle));
    blocks_[handle].cached_at = arena.pool->searches;
    count_handed_out(blocks_[front], bytes);
    return front;
  }
  arena.free.erase(found);
  Block& block = blocks_[handle];
  if (block.segment == none && block.split()) stats_.current.inactive_split -= block.size;
  count_handed_out(block, bytes);
  return handle;
}

/// The same for a block that is in no free list.
BlockHandle CachingAllocator::hand_out_taken(BlockHandle handle, std::int64_t size,
                                             std::int64_t bytes, bool expandable) {
  Arena& arena = *blocks_[handle].arena;
  if (cuts(arena, size, blocks_[handle].size - size, expandable)) {
    const BlockHandle front = split_front(handle, size);
    arena.free.insert(key_of(handle));
    blocks_[handle].cached_at = arena.pool->searches;
    count_handed_out(blocks_[front], bytes);
    return front;
  }
  Block& block = blocks_[handle];
  if (block.segment == none && block.split()) stats_.current.inactive_split -= block.size;
  count_handed_out(block, bytes);
  return handle;
}

/// Cuts `size` bytes off the front of a free block; the front is a new block, `handle` the rest.
BlockHandle CachingAllocator::split_front(BlockHandle handle, std::int64_t size) {
  const BlockHandle front = new_block();
  Block& rest = blocks_[handle];
  Block& block = blocks_[front];
  const bool was_split = rest.split();
  block.address = rest.address;
  block.size = size;
  block.arena = rest.arena;
  block.segment = rest.segment;
  block.previous = rest.previous;
  block.next = handle;
  if (rest.previous != none) blocks_[rest.previous].next = front;
  rest.previous = front;
  rest.address += size;
  rest.size -= size;
  if (rest.segment == none) {
    auto& split = stats_.current.inactive_split;
    split += was_split ? -size : rest.size;
    stats_.peak.inactive_split = std::max(stats_.peak.inactive_split, split);
  }
  return front;
}

void CachingAllocator::count_handed_out(Block& block, std::int64_t bytes) {
  block.state = BlockState::allocated;
  block.requested = bytes;
  AllocatorLevels& now = stats_.current;
  AllocatorLevels& peak = stats_.peak;
  now.allocated += block.size;
  now.active += block.size;
  now.requested += bytes;
  peak.allocated = std::max(peak.allocated, now.allocated);
  peak.active = std::max(peak.active, now.active);
  peak.requested = std::max(peak.requested, now.requested);
}

/// The block is used by nobody any more: not active, cached.
void CachingAllocator::release_active(BlockHandle handle) {
  const Block& block = blocks_[handle];
  stats_.current.active -= block.size;
  stats_.current.requested -= block.requested;
  cache_block(handle);
}

/// Merges the block with free neighbours and puts it into the free list; the handle it has there.
BlockHandle CachingAllocator::cache_block(BlockHandle handle) {
  Block& block = blocks_[handle];
  Arena& arena = *block.arena;
  const std::int64_t before = block.previous == none ? 0 : blocks_[block.previous].size;
  std::int64_t merged = 0;
  BlockHandle result = handle;
  block.state = BlockState::free;
  FreeBlocks::Key old_key = FreeBlocks::none;
  if (block.previous != none && blocks_[block.previous].state == BlockState::free) {
    result = block.previous;
    old_key = key_of(result);
    merged += before;
    Block& kept = blocks_[result];
    kept.size += block.size;
    kept.next = block.next;
    if (block.next != none) blocks_[block.next].previous = result;
    drop_block(handle);
  }
  Block& kept = blocks_[result];
  if (kept.next != none && blocks_[kept.next].state == BlockState::free) {
    const BlockHandle other = kept.next;
    if (old_key != FreeBlocks::none) arena.free.erase(old_key);
    old_key = key_of(other);
    merged += blocks_[other].size;
    kept.size += blocks_[other].size;
    kept.next = blocks_[other].next;
    if (kept.next != none) blocks_[kept.next].previous = result;
    drop_block(other);
  }
  kept.cached_at = arena.pool->searches;
  if (old_key == FreeBlocks::none) {
    arena.free.insert(key_of(result));
  } else {
    arena.free.replace(old_key, key_of(result));
  }
  if (kept.segment == none) {
    auto& split = stats_.current.inactive_split;
    split += (kept.split() ? kept.size : 0) - merged;
    stats_.peak.inactive_split = std::max(stats_.peak.inactive_split, split);
  }
  return result;
}

BlockHandle CachingAllocator::new_block() {
  if (!spare_blocks_.empty()) {
    const BlockHandle handle = spare_blocks_.back();
    spare_blocks_.pop_back();
    return handle;
  }
  if (blocks_.size() >= empty_block) throw std::length_error("blocks of the allocator");
  blocks_.emplace_back();
  return static_cast<BlockHandle>(blocks_.size() - 1);
}

void CachingAllocator::drop_block(BlockHandle handle) {
  blocks_[handle].state = BlockState::unused;
  spare_blocks_.push_back(handle);
}

std::vector<SegmentView> CachingAllocator::layout() const {
  std::vector<BlockHandle> heads;
  const auto mapped = [&](BlockHandle h) {
    return h != none && blocks_[h].state != BlockState::unmapped;
  };
  for (BlockHandle h = 0; h < blocks_.size(); ++h) {
    const bool used = blocks_[h].state != BlockState::unused;
    if (used && mapped(h) && !mapped(blocks_[h].previous)) heads.push_back(h);
  }
  std::sort(heads.begin(), heads.end(),
            [&](BlockHandle a, BlockHandle b) { return blocks_[a].address < blocks_[b].address; });
  std::vector<SegmentView> segments;
  for (const BlockHandle head : heads) {
    const Arena& arena = *blocks_[head].arena;
    SegmentView& segment = segments.emplace_back();
    segment.address = blocks_[head].address;
    segment.stream = arena.stream;
    segment.pool = arena.pool->owner->registered ? arena.pool->owner->label : 0;
    segment.small = arena.pool->small;
    segment.expandable = blocks_[head].segment != none;
    for (BlockHandle h = head; mapped(h); h = blocks_[h].next) {
      const Block& block = blocks_[h];
      segment.size += block.size;
      const std::int64_t requested = block.state == BlockState::free ? 0 : block.requested;
      segment.blocks.push_back({block.size, requested, h, block.state});
    }
  }
  return segments;
}

}  // namespace shardfit::run
