// Events of other streams, and MemPools.
#include <algorithm>
#include <stdexcept>

#include "run/allocator.h"

namespace shardfit::run {

void CachingAllocator::record_stream(BlockHandle handle, std::uint32_t stream) {
  if (handle == empty_block || handle == no_block) return;
  if (handle >= blocks_.size() || blocks_[handle].state != BlockState::allocated) {
    throw std::invalid_argument("record_stream of a block that is not allocated");
  }
  if (stream >= stream_limit) throw std::invalid_argument("stream of record_stream");
  Block& block = blocks_[handle];
  if (stream == block.arena->stream) return;
  for (std::uint32_t u = block.uses; u != none; u = uses_[u].next) {
    if (uses_[u].stream == stream) return;
  }
  std::uint32_t use = spare_use_;
  if (use == none) {
    use = static_cast<std::uint32_t>(uses_.size());
    uses_.push_back({0, none});
  } else {
    spare_use_ = uses_[use].next;
  }
  uses_[use] = {stream, block.uses};
  block.uses = use;
}

/// One event a stream that uses the freed block. Events complete in the order they are recorded
/// (hold_events decides from when on not), so one queue serves all streams.
void CachingAllocator::record_events(BlockHandle handle) {
  Block& block = blocks_[handle];
  block.state = BlockState::pending;
  for (std::uint32_t use = block.uses; use != none;) {
    events_.push_back({++serial_, handle});
    ++block.events;
    const std::uint32_t next = uses_[use].next;
    uses_[use].next = spare_use_;
    spare_use_ = use;
    use = next;
  }
  block.uses = none;
}

void CachingAllocator::finish_event(BlockHandle handle) {
  if (--blocks_[handle].events == 0) release_active(handle);
}

void CachingAllocator::process_events() {
  while (!events_.empty() && (!held_from_ || events_.front().serial <= *held_from_)) {
    const BlockHandle handle = events_.front().block;
    events_.pop_front();
    finish_event(handle);
  }
}

/// Waits for every event, or for those of one pool's blocks.
void CachingAllocator::wait_for_events(const PrivatePool* of) {
  std::deque<Event> waiting;
  waiting.swap(events_);
  for (const Event& event : waiting) {
    if (of != nullptr && blocks_[event.block].arena->pool->owner != of) {
      events_.push_back(event);
    } else {
      finish_event(event.block);
    }
  }
}

void CachingAllocator::hold_events() { held_from_ = serial_; }
void CachingAllocator::complete_events() { held_from_.reset(); }

CachingAllocator::PrivatePool* CachingAllocator::pool_of(std::uint32_t label) {
  for (PrivatePool& pool : pools_) {
    if (pool.label == label && !pool.freeable && label != 0) return &pool;
  }
  return nullptr;
}

void CachingAllocator::enter_pool(std::uint32_t label, bool use_on_oom, bool no_split) {
  if (label == 0) throw std::invalid_argument("MemPool 0 is the default pool");
  PrivatePool* pool = pool_of(label);
  if (pool == nullptr) {
    pool = &pools_.emplace_back();
    pool->label = label;
    pool->use_on_oom = use_on_oom;
    pool->no_split = no_split;
    pool->small.small = true;
    pool->small.owner = pool->large.owner = pool;
  } else if (std::find(entered_.begin(), entered_.end(), pool) != entered_.end()) {
    throw std::invalid_argument("MemPool entered twice");
  }
  entered_.push_back(pool);
  current_ = pool;
}

void CachingAllocator::leave_pool(std::uint32_t label) {
  const auto pool = std::find(entered_.begin(), entered_.end(), pool_of(label));
  if (pool == entered_.end()) throw std::invalid_argument("MemPool left that was not entered");
  entered_.erase(pool);
  current_ = entered_.empty() ? &pools_.front() : entered_.back();
}

void CachingAllocator::delete_pool(std::uint32_t label) {
  PrivatePool* pool = pool_of(label);
  if (pool == nullptr || std::find(entered_.begin(), entered_.end(), pool) != entered_.end()) {
    throw std::invalid_argument("MemPool deleted that does not exist or is entered");
  }
  pool->freeable = true;
  wait_for_events(pool);
  release_pool(pool->small);
  release_pool(pool->large);
  if (pool->segments == 0) pool->registered = false;
}

}  // namespace shardfit::run
