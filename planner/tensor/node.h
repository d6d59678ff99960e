#pragma once
// The autograd graph: one node an operator that needs a backward, with what it saved and where its
// gradients go (pytorch torch/csrc/autograd/function.h).

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

#include "tensor/small_vector.h"
#include "tensor/tensor.h"

namespace shardfit::tensor {

/// What a saved-tensor hook put in a tensor's place.
struct Packed {
  virtual ~Packed() = default;
  virtual Tensor unpack() = 0;
};

/// A tensor kept for backward, or what a hook made of it.
class Saved {
 public:
  /// Keeps `tensor`; runs the runtime's pack hook where one is set (it may stop the runtime).
  void keep(const Tensor& tensor);
  Tensor get() const { return packed_ ? packed_->unpack() : tensor_; }
  void reset() {
    tensor_.reset();
    packed_.reset();
  }
  bool empty() const { return !tensor_ && !packed_; }

 private:
  Tensor tensor_;
  std::shared_ptr<Packed> packed_;
};

struct Edge {
  NodeRef node;
  std::uint32_t input = 0;
};

/// Shape and dtype a gradient must have where an edge leads (engine.cpp, validate_outputs).
struct InputMetadata {
  Shape shape;
  DType dtype = DType::f32;
};

/// A node's data that some kinds need beyond tensors: objects of Python in the original.
struct NodeExtra {
  virtual ~NodeExtra() = default;
};

using Gradients = SmallVector<Tensor, 4>;

/// Computes the gradients of a node's inputs from those of its outputs. `in` stays alive until the
/// node is done; `out` has one place an edge.
using Backward = void (*)(Node& node, Gradients& in, Gradients& out);

inline constexpr std::uint64_t accumulate_sequence = std::numeric_limits<std::uint64_t>::max();

struct Node {
  std::uint32_t references = 0;
  std::uint32_t dependencies = 0;  // of the running backward pass
  std::uint64_t pass = 0;          // which backward pass counted them
  std::uint64_t sequence = 0;
  std::int32_t divided_output = -1;  // whose gradient a hook divides before the node gets it
  std::int32_t operation = -1;       // the operator it belongs to, where a recorder numbers them
  const char* kind = "";
  std::uint32_t module = 0;
  Backward backward = nullptr;
  Runtime* runtime = nullptr;
  SmallVector<Edge, 4> next;
  SmallVector<InputMetadata, 1> inputs;  // of this node, that is outputs of the operator
  SmallVector<Saved, 4> saved;
  Shape shape;                           // numbers a kind remembers: a shape,
  Shape stride;                          // the strides that went with it,
  std::array<std::int64_t, 4> number{};  // and up to four more
  std::vector<std::int64_t> sizes;       // of parts, where there are many
  DType dtype = DType::f32;
  std::unique_ptr<NodeExtra> extra;
  Tensor held_variable;            // of an accumulate node
  SmallVector<Tensor, 1> pending;  // gradients that have arrived, while the node waits
  /// Hooks: on its outputs, run when their gradients are there (Tensor.register_hook); and on
  /// itself, run when it has run and its gradients are still held (Node.register_hook).
  std::vector<std::function<void()>> before, after;
  std::uint8_t stream = 0;  // it was made while this was the current stream, and runs on it
  /// Its gradients are tensors of a Python subclass (DTensor), which are never added in place
  /// (input_buffer.cpp, isTensorSubclassLike).
  bool subclass_gradients = false;

  void save(const Tensor& tensor) {
    saved.push_back({});
    saved.back().keep(tensor);
  }
  /// Leaves a place empty, so that later places keep their numbers.
  void skip() { saved.push_back({}); }
  Tensor load(int i) const { return saved[static_cast<unsigned>(i)].get(); }
  bool wants(int i) const { return static_cast<bool>(next[static_cast<unsigned>(i)].node); }
  void release_saved();
};

/// The node of a function written in Python, its edges to `inputs` (empty ones have none); empty
/// where no gradient is wanted. Made before the function runs, as its sequence number says.
NodeRef function_node(const char* kind, Backward backward, std::initializer_list<Tensor> inputs);

/// Makes `writer` the history of `a`, over which it has written; its first edge goes to what `a`
/// was before. Of a view: the history of the tensor it was taken of, of which the view is then
/// taken anew (pytorch torch/csrc/autograd/variable.cpp, rebase_history).
void written_over(const Tensor& a, const NodeRef& writer);

}  // namespace shardfit::tensor
