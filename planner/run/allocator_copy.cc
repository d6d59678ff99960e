// An allocator as it stands, on a card of another total: a run goes on from there.
#include <algorithm>

#include "run/allocator.h"

namespace shardfit::run {

std::unique_ptr<CachingAllocator> CachingAllocator::on_total(std::int64_t total) const {
  std::unique_ptr<CachingAllocator> copy(new CachingAllocator(*this));
  copy->lead_pointers_here(*this);
  if (!copy->move_ends(total)) return nullptr;
  return copy;
}

/// Pools and arenas lie in the same order in both.
void CachingAllocator::lead_pointers_here(const CachingAllocator& other) {
  const auto pool = [&](const PrivatePool* old) {
    std::size_t at = 0;
    while (&other.pools_[at] != old) ++at;
    return &pools_[at];
  };
  const auto arena = [&](const Arena* old) -> Arena* {
    for (std::size_t i = 0; i < arenas_.size(); ++i) {
      if (&other.arenas_[i] == old) return &arenas_[i];
    }
    return nullptr;
  };
  current_ = pool(other.current_);
  for (PrivatePool*& entered : entered_) entered = pool(entered);
  for (PrivatePool& own : pools_) {
    for (BlockPool* blocks : {&own.small, &own.large}) {
      blocks->owner = &own;
      for (Arena*& one : blocks->arenas) one = one ? arena(one) : nullptr;
      for (Arena* one : blocks->arenas) {
        if (one) one->pool = blocks;
      }
    }
  }
  const Arena* last = nullptr;
  Arena* here = nullptr;
  for (Block& block : blocks_) {
    if (block.arena != last) {
      last = block.arena;
      here = arena(last);
    }
    block.arena = here;
  }
}

/// Expandable segments end where their address space does.
bool CachingAllocator::move_ends(std::int64_t total) {
  std::uint32_t moved = 0;
  for (Block& block : blocks_) {
    if (block.state != BlockState::unmapped || block.next != none) continue;
    const std::int64_t page = segments_[block.segment].page;
    block.size += expandable_space(total, page) - expandable_space(total_, page);
    if (block.size <= 0) return false;
    ++moved;
  }
  total_ = total;
  return moved == expandable_count_;
}

}  // namespace shardfit::run
