#pragma once
// A model as a graph: operators in the order in which they run, which is a topological one, and the
// tensors between them, with what each costs forward and backward and what it saves. It is read off
// one forward of the model's own program (trace.h), so that shapes, kernels and saved tensors are
// those of the step itself.

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace shardfit::graph {

/// A tensor that an operator makes or that is there from the start: a parameter, a buffer, the
/// batch.
struct TensorEdge {
  std::string name;  // of a parameter: its path
  tensor::Shape shape;
  DType dtype = DType::f32;
  std::uint32_t storage = 0;   // views share it; no_storage where it takes no memory
  std::int32_t producer = -1;  // operator; -1: there from the start
  bool parameter = false;
};
inline constexpr std::uint32_t no_storage = 0xffffffff;

/// Work on the device: flops of matrix products, convolutions and attention (what
/// torch/utils/flop_counter.py counts, halved where the attention kernel skips masked blocks);
/// bytes read and written by every operator, each element once.
struct Work {
  double flops = 0;
  double bytes = 0;
};

struct Operator {
  const char* kind = "";
  std::uint32_t module = 0;  // index into ModelGraph::modules
  std::uint32_t layer = 0;   // index into ModelGraph::layers
  bool view = false;         // launches nothing
  // Its tensors stand in ModelGraph::links, inputs first.
  std::uint32_t first_link = 0;
  std::uint32_t inputs = 0, outputs = 0;
  Work forward, backward;
  /// What autograd keeps because of this operator until its backward has run. A storage counts
  /// once, with the first operator that saves it, or with the one that made it where several layers
  /// do. Parameters are not counted: they are there anyway.
  std::int64_t saved_bytes = 0;
  std::int64_t weight_copy_bytes = 0;  // the part of it that copies parameters (autocast's casts)
};

/// A layer is a module: of modules in a list, each element of the outermost list with all below it.
struct Layer {
  std::string name;  // "" : the model's own statements
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  std::int64_t saved_bytes = 0;  // weight copies included
  std::int64_t weight_copy_bytes = 0;
  std::int64_t operators = 0;  // views included
  Work forward, backward;
  std::int64_t activation_bytes() const { return saved_bytes - weight_copy_bytes; }
};

struct ModelGraph {
  std::vector<std::string> modules;
  std::vector<Operator> operators;
  std::vector<TensorEdge> tensors;
  std::vector<std::uint32_t> links;  // tensors of operators
  std::vector<Layer> layers;         // in the order in which the modules were made
  Layer total;                       // their sum
  const Layer* find_layer(const std::string& name) const;
  std::span<const std::uint32_t> inputs_of(const Operator& op) const {
    return std::span(links).subspan(op.first_link, op.inputs);
  }
  std::span<const std::uint32_t> outputs_of(const Operator& op) const {
    return std::span(links).subspan(op.first_link + op.inputs, op.outputs);
  }
};

/// How much of a graph is wanted.
enum class Detail : std::uint8_t {
  layers,     // layers and their sum
  operators,  // all of it
};

/// Equal neighbours among the layers, in numbers and in the list they stand in.
struct LayerGroup {
  std::size_t first = 0;
  std::size_t count = 1;
};
std::vector<LayerGroup> equal_layers(const ModelGraph& graph);
/// "model.layers.0 .. 31" for a group, the layer's name alone for a single one.
std::string group_name(const ModelGraph& graph, const LayerGroup& group);

/// The numbers of the operators in a topological order that Boost.Graph finds from the edges alone;
/// throws std::logic_error where there is a cycle.
std::vector<std::uint32_t> topological_order(const ModelGraph& graph);
/// Work of the heaviest path from the start to the end of the forward, in bytes moved.
double critical_bytes(const ModelGraph& graph);
/// Graphviz: one node an operator, one edge a tensor with its shape; views are drawn through.
void write_dot(const ModelGraph& graph, std::ostream& out);

}  // namespace shardfit::graph
