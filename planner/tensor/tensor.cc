#include "tensor/tensor.h"

#include <stdexcept>

#include "base/units.h"
#include "tensor/runtime.h"

namespace shardfit::tensor {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  for (std::int64_t n : dims) push_back(n);
}

void Shape::push_back(std::int64_t n) {
  if (rank == max_dims) throw std::runtime_error("more than six dimensions");
  size[static_cast<unsigned>(rank++)] = n;
}

void Shape::erase(int dim) {
  for (int i = dim; i + 1 < rank; ++i) (*this)[i] = (*this)[i + 1];
  --rank;
}

void Shape::insert(int dim, std::int64_t n) {
  if (rank == max_dims) throw std::runtime_error("more than six dimensions");
  ++rank;
  for (int i = rank - 1; i > dim; --i) (*this)[i] = (*this)[i - 1];
  (*this)[dim] = n;
}

std::int64_t Shape::count() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n = checked_multiply(n, size[static_cast<unsigned>(i)]);
  return n;
}

bool Shape::operator==(const Shape& other) const {
  if (rank != other.rank) return false;
  for (int i = 0; i < rank; ++i) {
    if ((*this)[i] != other[i]) return false;
  }
  return true;
}

Shape contiguous_strides(const Shape& shape) {
  Shape stride;
  stride.rank = shape.rank;
  std::int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return stride;
}

void Tensor::release() {
  TensorBody* body = std::exchange(body_, nullptr);
  if (--body->references == 0) body->runtime->drop(body);
}

bool Tensor::contiguous() const {
  std::int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (size(i) == 0) return true;
    if (size(i) == 1) continue;
    if (body_->stride[i] != step) return false;
    step *= size(i);
  }
  return true;
}

bool Tensor::dense() const {
  if (contiguous()) return true;
  int order[max_dims];
  int n = 0;
  for (int i = 0; i < rank(); ++i) {
    if (size(i) > 1) order[n++] = i;
  }
  for (int i = 1; i < n; ++i) {
    for (int j = i; j > 0 && body_->stride[order[j]] < body_->stride[order[j - 1]]; --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  std::int64_t step = 1;
  for (int i = 0; i < n; ++i) {
    if (body_->stride[order[i]] != step) return false;
    step *= size(order[i]);
  }
  return true;
}

NodeRef::NodeRef(Node* node) : node_(node) {
  if (node_) ++node_->references;
}

void NodeRef::release() {
  Node* node = std::exchange(node_, nullptr);
  if (--node->references == 0) node->runtime->drop(node);
}

}  // namespace shardfit::tensor
