#pragma once
// A vector whose first elements need no memory of their own: edges, gradients and saved tensors
// come in twos and threes, a hundred thousand times a step.

#include <array>
#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

namespace shardfit::tensor {

template <class T, std::size_t n>
class SmallVector {
 public:
  SmallVector() = default;
  explicit SmallVector(std::size_t size) { resize(size); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) {
    assert(i < size_);
    return i < n ? near_[i] : far_[i - n];
  }
  const T& operator[](std::size_t i) const {
    assert(i < size_);
    return i < n ? near_[i] : far_[i - n];
  }
  T& back() { return (*this)[size_ - 1]; }

  void push_back(T value) {
    if (size_ < n) {
      near_[size_] = std::move(value);
    } else {
      far_.push_back(std::move(value));
    }
    ++size_;
  }
  /// New elements are default-constructed, dropped ones reset, first ones first.
  void resize(std::size_t size) {
    for (std::size_t i = size; i < size_ && i < n; ++i) near_[i] = T();
    if (size > n || !far_.empty()) far_.resize(size > n ? size - n : 0);
    size_ = size;
  }
  void clear() { resize(0); }

  template <class Vector, class Value>
  class Iterator {
   public:
    Iterator(Vector* vector, std::size_t at) : vector_(vector), at_(at) {}
    Value& operator*() const { return (*vector_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    Vector* vector_;
    std::size_t at_;
  };
  auto begin() { return Iterator<SmallVector, T>(this, 0); }
  auto end() { return Iterator<SmallVector, T>(this, size_); }
  auto begin() const { return Iterator<const SmallVector, const T>(this, 0); }
  auto end() const { return Iterator<const SmallVector, const T>(this, size_); }

 private:
  std::array<T, n> near_{};
  std::vector<T> far_;
  std::size_t size_ = 0;
};

}  // namespace shardfit::tensor
