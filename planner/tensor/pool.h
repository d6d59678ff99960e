#pragma once
// A free list of equal objects: the engine creates and drops a hundred thousand tensors and nodes a
// step.

#include <memory>
#include <vector>

namespace shardfit::tensor {

template <class T>
class Pool {
 public:
  /// A default-constructed T; valid until give() or the pool's end.
  T* take() {
    if (free_.empty()) grow();
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  /// Takes an object back; the caller has reset it to its default state.
  void give(T* object) { free_.push_back(object); }

 private:
  void grow() {
    constexpr int count = 256;
    slabs_.push_back(std::make_unique<T[]>(count));
    for (int i = count - 1; i >= 0; --i) free_.push_back(&slabs_.back()[i]);
  }
  std::vector<std::unique_ptr<T[]>> slabs_;
  std::vector<T*> free_;
};

}  // namespace shardfit::tensor
