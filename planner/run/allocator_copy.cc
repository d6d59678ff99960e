// An allocator as it stands: on another card, where a run goes on from there, and beside
// another moment.
#include <algorithm>

#include "base/number_table.h"
#include "run/allocator.h"

namespace shardfit::run {

std::unique_ptr<CachingAllocator> CachingAllocator::on_card(std::int64_t total,
                                                            std::int64_t context) const {
  std::unique_ptr<CachingAllocator> copy(new CachingAllocator(*this));
  copy->lead_pointers_here(*this);
  if (!copy->move_ends(total)) return nullptr;
  copy->context_ = context;
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

std::optional<AllocatorStanding> CachingAllocator::standing(
    const std::vector<std::uint32_t>& owners, std::uint32_t floor, std::uint32_t less) const {
  if (collects_ || !events_.empty() || !entered_.empty()) return std::nullopt;
  // Blocks come in no order: a sum of what each is hashed to.
  AllocatorStanding sum;
  const auto add = [&](std::uint64_t hash) {
    sum.first += mixed(hash, 0xd6e8feb86659fd93u);
    sum.second += mixed(hash, 0xa0761d6478bd642fu);
  };
  for (BlockHandle handle = 0; handle < blocks_.size(); ++handle) {
    const Block& block = blocks_[handle];
    if (block.state == BlockState::unused) continue;
    if (block.uses != none) return std::nullopt;
    std::uint64_t hash =
        mixed(static_cast<std::uint64_t>(block.address), static_cast<std::uint64_t>(block.size));
    if (block.state == BlockState::allocated && handle < owners.size()) {
      const std::uint32_t owner = owners[handle];
      const bool later = owner >= floor;
      hash = mixed(hash, std::uint64_t{later ? owner - less : owner} << 1 | (later ? 1 : 0));
      hash = mixed(hash, static_cast<std::uint64_t>(block.requested));
    }
    add(mixed(hash, static_cast<std::uint64_t>(block.state)));
  }
  for (const std::int64_t value :
       {stats_.retries, stats_.ooms, stats_.rejections, stats_.driver_allocations,
        stats_.driver_frees, stats_.peak.allocated, stats_.peak.reserved}) {
    add(mixed(sum.first, static_cast<std::uint64_t>(value)));
  }
  return sum;
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
