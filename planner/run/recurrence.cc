#include "run/recurrence.h"

namespace shardfit::run {

void Placement::move_on(std::uint32_t floor, std::uint32_t names) {
  std::vector<BlockHandle> moved;
  for (BlockHandle handle = 0; handle < owners_.size(); ++handle) {
    if (owners_[handle] == none || owners_[handle] < floor) continue;
    handles_[owners_[handle]] = no_block;
    owners_[handle] += names;
    moved.push_back(handle);
  }
  for (const BlockHandle handle : moved) handles_[owners_[handle]] = handle;
}

Recurrence::Recurrence(const Program& program, std::size_t from) : program_(program) {
  go_to(0, from);
}

/// The first pass at `from` or later, of that repeat or a later one.
void Recurrence::go_to(std::size_t repeat, std::size_t from) {
  stood_.clear();
  for (repeat_ = repeat; repeat_ < program_.repeats.size(); ++repeat_) {
    const Repeat& of = program_.repeats[repeat_];
    pass_ = 0;
    while (pass_ < of.passes && of.first_instruction + pass_ * of.length < from) ++pass_;
    next_ = of.first_instruction + pass_ * of.length;
    if (pass_ < of.passes) return;
  }
  next_ = program_.instructions.size() + 1;
}

Recurrence::Skip Recurrence::look(const CachingAllocator& allocator, const Placement& placement,
                                  std::uint64_t more) {
  const Repeat& of = program_.repeats[repeat_];
  const std::uint32_t left = of.passes - pass_;
  const auto standing = allocator.standing(placement.owners(), of.floor, pass_ * of.storages);
  std::uint32_t period = 0;
  for (std::size_t back = 1; standing && back <= stood_.size(); ++back) {
    const Stood& then = stood_[stood_.size() - back];
    if (!(then.standing == *standing) || then.more != more) continue;
    period = static_cast<std::uint32_t>(back);
    break;
  }
  if (!standing) {
    stood_.clear();
  } else {
    stood_.push_back({*standing, more});
  }
  if (period > 0) {
    const Skip skip{&of, left / period * period, period};
    go_to(repeat_ + 1, 0);
    return skip;
  }
  if (left > 1) {
    ++pass_;
    next_ += of.length;
  } else {
    go_to(repeat_ + 1, 0);
  }
  return {&of, 0, 0};
}

}  // namespace shardfit::run
