#pragma once
// Passes before which an allocator stands as it stood before an earlier one: what they do to it, it
// has done already.

#include <cstdint>
#include <vector>

#include "run/allocator.h"
#include "tensor/program.h"

namespace shardfit::run {

/// A program's storages in an allocator.
class Placement {
 public:
  explicit Placement(const Program& program) : handles_(program.storages.size(), no_block) {}

  BlockHandle handle(std::uint32_t storage) const { return handles_[storage]; }
  void put(std::uint32_t storage, BlockHandle handle) {
    handles_[storage] = handle;
    if (handle >= empty_block) return;
    if (handle >= owners_.size()) owners_.resize(handle + handle / 2 + 64, none);
    owners_[handle] = storage;
  }
  BlockHandle take(std::uint32_t storage) {
    const BlockHandle handle = handles_[storage];
    handles_[storage] = no_block;
    if (handle < empty_block) owners_[handle] = none;
    return handle;
  }
  /// Storages from `floor` on become those so many names later.
  void move_on(std::uint32_t floor, std::uint32_t names);
  /// By handle: the storage in that block, or none.
  const std::vector<std::uint32_t>& owners() const { return owners_; }

  static constexpr std::uint32_t none = 0xffffffff;

 private:
  std::vector<BlockHandle> handles_;
  std::vector<std::uint32_t> owners_;
};

/// Looks before each pass of a program's repeats whether the allocator has stood like that.
class Recurrence {
 public:
  /// Of a run that goes on at an instruction.
  explicit Recurrence(const Program& program, std::size_t from = 0);

  /// The instruction before which to look next; beyond the program's end where there is none.
  std::size_t next() const { return next_; }
  /// Whose pass that is.
  const Repeat& repeat() const { return program_.repeats[repeat_]; }
  /// Passes that need not be run, a multiple of the period with which it stands alike.
  struct Skip {
    const Repeat* of = nullptr;
    std::uint32_t passes = 0, period = 0;
    std::size_t instructions() const { return passes * of->length; }  // that are left out
    std::uint32_t names() const { return passes * of->storages; }
  };
  /// Before next(). `more`: what else must be alike for a run to go on in the same way. Where it
  /// gives passes, the run goes on behind them.
  Skip look(const CachingAllocator& allocator, const Placement& placement, std::uint64_t more = 0);

 private:
  struct Stood {
    AllocatorStanding standing;
    std::uint64_t more;
  };
  void go_to(std::size_t repeat, std::size_t from);

  const Program& program_;
  std::size_t repeat_ = 0;  // that comes, or is run
  std::uint32_t pass_ = 0;  // that begins at next_
  std::size_t next_ = 0;
  std::vector<Stood> stood_;  // before each of the passes before it
};

}  // namespace shardfit::run
