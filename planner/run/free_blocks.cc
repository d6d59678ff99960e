#include "run/free_blocks.h"

namespace shardfit::run {

FreeBlocks::Bin::Bin(const Bin& other) : count(other.count), capacity(other.capacity) {
  if (other.many) many = std::make_unique<std::set<Key>>(*other.many);
  if (capacity == 0) return;
  keys = std::make_unique<Key[]>(capacity);
  std::copy_n(other.keys.get(), count, keys.get());
}

bool FreeBlocks::make_room(Bin& bin, Key key) {
  if (!bin.many && bin.capacity == most_in_array) {
    bin.many = std::make_unique<std::set<Key>>(bin.keys.get(), bin.keys.get() + bin.count);
    bin.keys.reset();
    bin.count = bin.capacity = 0;
  }
  if (bin.many) {
    bin.many->insert(key);
    return false;
  }
  const std::uint32_t capacity = std::max(bin.capacity * 2, first_capacity);
  auto keys = std::make_unique_for_overwrite<Key[]>(capacity);
  std::copy_n(bin.keys.get(), bin.count, keys.get());
  bin.keys = std::move(keys);
  bin.capacity = capacity;
  return true;
}

FreeBlocks::Key FreeBlocks::before(Key key) const {
  for (std::uint32_t index = bin_of(key) + 1; index-- > 0;) {
    const Bin& bin = bins_[index];
    Key best = none;
    if (bin.many) {
      const auto at = bin.many->lower_bound(key);
      if (at != bin.many->begin()) best = *std::prev(at);
    }
    if (const Key* at = below(bin, key); at != bin.end()) best = *at;
    if (best != none) return best;
  }
  return none;
}

std::vector<FreeBlocks::Key> FreeBlocks::keys() const {
  std::vector<Key> all;
  for (const Bin& bin : bins_) {
    all.insert(all.end(), bin.keys.get(), bin.keys.get() + bin.count);
    if (bin.many) all.insert(all.end(), bin.many->begin(), bin.many->end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace shardfit::run
