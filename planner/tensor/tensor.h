#pragma once
// Tensors without values: sizes, strides, dtype and a reference to a storage, with PyTorch's rules
// for who keeps what alive. A storage is freed (an instruction of the program) when its last tensor
// goes.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/program.h"

namespace shardfit::tensor {

class Runtime;
struct Node;

inline constexpr int max_dims = 6;

/// Sizes or strides of up to six dimensions, in elements.
struct Shape {
  int rank = 0;
  std::array<std::int64_t, max_dims> size{};

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  std::int64_t& operator[](int i) { return size[static_cast<unsigned>(i < 0 ? i + rank : i)]; }
  std::int64_t operator[](int i) const { return size[static_cast<unsigned>(i < 0 ? i + rank : i)]; }
  void push_back(std::int64_t n);
  void erase(int dim);
  void insert(int dim, std::int64_t n);
  /// Product of the sizes; throws OverflowError past 63 bits.
  std::int64_t count() const;
  bool operator==(const Shape& other) const;
};

struct Storage {
  std::uint32_t references = 0;
  std::uint32_t id = 0;  // of the memory it has, or had last
  std::uint8_t stream = 0;
  bool has_memory = true;  // false: resized to nothing while tensors are still on it
  Runtime* runtime = nullptr;
};

struct TensorBody;

/// A counted reference to a tensor; empty where PyTorch would hold an undefined tensor or None.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorBody* body);  // takes over one new reference
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  Tensor& operator=(const Tensor& other) {
    Tensor copy(other);
    std::swap(body_, copy.body_);
    return *this;
  }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor taken(std::move(other));
    std::swap(body_, taken.body_);
    return *this;
  }
  ~Tensor() { reset(); }
  void reset() {
    if (body_) release();
  }

  explicit operator bool() const { return body_ != nullptr; }
  TensorBody* operator->() const { return body_; }
  TensorBody* get() const { return body_; }
  bool operator==(const Tensor& other) const { return body_ == other.body_; }

  const Shape& shape() const;
  std::int64_t size(int dim) const;
  int rank() const;
  DType dtype() const;
  std::int64_t count() const;
  Runtime& runtime() const;
  bool requires_grad() const;
  /// Strides are those of a row-major tensor.
  bool contiguous() const;
  /// Some order of the dimensions is row-major without holes or overlap.
  bool dense() const;
  std::uint32_t use_count() const;

 private:
  void release();
  TensorBody* body_ = nullptr;
};

/// A counted reference to a node of the autograd graph.
class NodeRef {
 public:
  NodeRef() = default;
  explicit NodeRef(Node* node);
  NodeRef(const NodeRef& other) : NodeRef(other.node_) {}
  NodeRef(NodeRef&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  NodeRef& operator=(const NodeRef& other) {
    NodeRef copy(other);
    std::swap(node_, copy.node_);
    return *this;
  }
  NodeRef& operator=(NodeRef&& other) noexcept {
    NodeRef taken(std::move(other));
    std::swap(node_, taken.node_);
    return *this;
  }
  ~NodeRef() { reset(); }
  void reset() {
    if (node_) release();
  }
  explicit operator bool() const { return node_ != nullptr; }
  Node* operator->() const { return node_; }
  Node* get() const { return node_; }

 private:
  void release();
  Node* node_ = nullptr;
};

/// Tensors that stand in a row somewhere else: a list in the call, or a vector.
class Tensors {
 public:
  Tensors(std::initializer_list<Tensor> list) : size_(list.size()) { first_ = list.begin(); }
  Tensors(const std::vector<Tensor>& vector) : first_(vector.data()), size_(vector.size()) {}
  const Tensor* begin() const { return first_; }
  const Tensor* end() const { return first_ + size_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Tensor& front() const { return *first_; }

 private:
  const Tensor* first_ = nullptr;
  std::size_t size_ = 0;
};

struct TensorBody {
  std::uint32_t references = 0;
  DType dtype = DType::f32;
  bool leaf_requires_grad = false;  // a parameter, or a detached input that wants a gradient
  bool replaceable =
      false;             // a parameter whose storage comes and goes: backward gets it as it is then
  bool on_host = false;  // a number of the host that only looks like a tensor: no bytes
  Shape shape;
  Shape stride;
  Storage* storage = nullptr;
  Runtime* runtime = nullptr;
  NodeRef grad_fn;
  std::uint32_t output = 0;     // which output of grad_fn
  Tensor grad;                  // of a leaf
  Tensor base;                  // of a view: the tensor it was taken of, which it keeps alive
  Node* accumulator = nullptr;  // of a leaf: not counted, cleared by the node itself
  std::int32_t parameter = -1;  // index among the trainable parameters; -1: none of them
  std::int32_t producer = -1;   // the operator that made it, where a recorder numbers them
};

inline Tensor::Tensor(TensorBody* body) : body_(body) {
  if (body_) ++body_->references;
}
inline Tensor::Tensor(const Tensor& other) : Tensor(other.body_) {}
inline const Shape& Tensor::shape() const { return body_->shape; }
inline std::int64_t Tensor::size(int dim) const { return body_->shape[dim]; }
inline int Tensor::rank() const { return body_->shape.rank; }
inline DType Tensor::dtype() const { return body_->dtype; }
inline std::int64_t Tensor::count() const { return body_->shape.count(); }
inline Runtime& Tensor::runtime() const { return *body_->runtime; }
inline bool Tensor::requires_grad() const {
  return body_ && (body_->leaf_requires_grad || body_->grad_fn);
}
inline std::uint32_t Tensor::use_count() const { return body_ ? body_->references : 0; }

/// Row-major strides of a shape.
Shape contiguous_strides(const Shape& shape);

}  // namespace shardfit::tensor
