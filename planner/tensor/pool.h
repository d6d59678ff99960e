#pragma once
// A free list of equal objects: the engine creates and drops a hundred thousand tensors and nodes a
// step.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace shardfit::tensor {

template <class T>
class Pool {
 public:
  Pool() : slabs_(std::exchange(spare(), {})) {
    for (auto slab = slabs_.rbegin(); slab != slabs_.rend(); ++slab) add(slab->get());
  }
  /// Its memory, up to some megabytes, is the next pool's of this thread: a plan lowers dozens of
  /// programs, one after another.
  ~Pool() {
    if (!all_came_back() || slabs_.size() < spare().size()) return;
    if (slabs_.size() > most_spare) slabs_.resize(most_spare);
    spare() = std::move(slabs_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// A default-constructed T; valid until give() or the pool's end.
  T* take() {
    if (free_.empty()) {
      slabs_.push_back(std::make_unique<T[]>(slab_size));
      add(slabs_.back().get());
    }
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  /// Takes an object back; the caller has reset it to its default state.
  void give(T* object) { free_.push_back(object); }
  bool all_came_back() const { return free_.size() == slabs_.size() * slab_size; }
  /// Every object there is memory for, those that came back too.
  template <class Visit>
  void for_each(Visit visit) {
    for (const std::unique_ptr<T[]>& slab : slabs_) {
      for (std::size_t i = 0; i < slab_size; ++i) visit(slab[i]);
    }
  }

 private:
  using Slabs = std::vector<std::unique_ptr<T[]>>;
  static constexpr std::size_t slab_size = 256, most_spare = 64;

  void add(T* slab) {
    for (std::size_t i = slab_size; i-- > 0;) free_.push_back(slab + i);
  }
  static Slabs& spare() {
    static thread_local Slabs slabs;
    return slabs;
  }

  Slabs slabs_;
  std::vector<T*> free_;
};

}  // namespace shardfit::tensor
