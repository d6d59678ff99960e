// The only file with Boost.Graph.

#include "graph/model_graph.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>
#include <ostream>
#include <stdexcept>

#include "tensor/ops.h"

namespace shardfit::graph {
namespace {

struct EdgeTensor {
  std::uint32_t tensor = 0;
};
using Boosted = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS,
                                      boost::no_property, EdgeTensor>;

/// Operators as vertices, an edge for every tensor that one makes and another reads.
Boosted boosted(const ModelGraph& graph) {
  Boosted out(graph.operators.size());
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    for (const std::uint32_t input : graph.inputs_of(graph.operators[i])) {
      const std::int32_t producer = graph.tensors[input].producer;
      if (producer >= 0) {
        boost::add_edge(static_cast<std::size_t>(producer), i, EdgeTensor{input}, out);
      }
    }
  }
  return out;
}

/// The operator that made the memory a view shows: views are drawn through.
std::int32_t drawn_producer(const ModelGraph& graph, std::int32_t producer) {
  while (producer >= 0) {
    const Operator& op = graph.operators[static_cast<std::size_t>(producer)];
    if (!op.view || op.inputs == 0) break;
    producer = graph.tensors[graph.inputs_of(op).front()].producer;
  }
  return producer;
}

std::string_view last_part(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string_view list_of(std::string_view name) {
  const std::string_view last = last_part(name);
  const bool number =
      !last.empty() && last.find_first_not_of("0123456789") == std::string_view::npos;
  return number ? name.substr(0, name.size() - last.size()) : "";
}

bool equal(const Layer& a, const Layer& b) {
  return a.parameters == b.parameters && a.parameter_bytes == b.parameter_bytes &&
         a.saved_bytes == b.saved_bytes && a.weight_copy_bytes == b.weight_copy_bytes &&
         a.operators == b.operators && a.forward.flops == b.forward.flops &&
         a.forward.bytes == b.forward.bytes && a.backward.flops == b.backward.flops &&
         a.backward.bytes == b.backward.bytes;
}

}  // namespace

const Layer* ModelGraph::find_layer(const std::string& name) const {
  const auto it = std::find_if(layers.begin(), layers.end(),
                               [&](const Layer& layer) { return layer.name == name; });
  return it == layers.end() ? nullptr : &*it;
}

std::vector<LayerGroup> equal_layers(const ModelGraph& graph) {
  std::vector<LayerGroup> groups;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (!groups.empty()) {
      const Layer& before = graph.layers[i - 1];
      const std::string_view list = list_of(graph.layers[i].name);
      if (!list.empty() && list == list_of(before.name) && equal(before, graph.layers[i])) {
        ++groups.back().count;
        continue;
      }
    }
    groups.push_back({i, 1});
  }
  return groups;
}

std::string group_name(const ModelGraph& graph, const LayerGroup& group) {
  const std::string& first = graph.layers[group.first].name;
  if (group.count == 1) return first.empty() ? "(the model itself)" : first;
  return first + " .. " + std::string(last_part(graph.layers[group.first + group.count - 1].name));
}

std::vector<std::uint32_t> topological_order(const ModelGraph& graph) {
  const Boosted g = boosted(graph);
  std::vector<std::uint32_t> order;
  order.reserve(graph.operators.size());
  try {
    boost::topological_sort(g, std::back_inserter(order));
  } catch (const boost::not_a_dag&) {
    throw std::logic_error("the model's graph has a cycle");
  }
  std::reverse(order.begin(), order.end());
  return order;
}

double critical_bytes(const ModelGraph& graph) {
  const Boosted g = boosted(graph);
  std::vector<double> end(graph.operators.size(), 0);
  double longest = 0;
  for (const std::uint32_t v : topological_order(graph)) {
    end[v] += graph.operators[v].forward.bytes;
    longest = std::max(longest, end[v]);
    const auto [first, last] = boost::out_edges(v, g);
    for (auto e = first; e != last; ++e) {
      double& next = end[boost::target(*e, g)];
      next = std::max(next, end[v]);
    }
  }
  return longest;
}

void write_dot(const ModelGraph& graph, std::ostream& out) {
  Boosted drawn;
  std::vector<std::int32_t> vertex(graph.operators.size(), -1);
  std::vector<std::uint32_t> shown;
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& op = graph.operators[i];
    if (op.view) continue;
    vertex[i] = static_cast<std::int32_t>(boost::add_vertex(drawn));
    shown.push_back(static_cast<std::uint32_t>(i));
    for (const std::uint32_t input : graph.inputs_of(op)) {
      const std::int32_t producer = drawn_producer(graph, graph.tensors[input].producer);
      if (producer < 0 || vertex[static_cast<std::size_t>(producer)] < 0) continue;
      boost::add_edge(static_cast<std::size_t>(vertex[static_cast<std::size_t>(producer)]),
                      static_cast<std::size_t>(vertex[i]), EdgeTensor{input}, drawn);
    }
  }
  out << "digraph G {\nnode [shape=box]\n";
  for (std::size_t v = 0; v < shown.size(); ++v) {
    const Operator& op = graph.operators[shown[v]];
    out << v << " [label=\"" << op.kind << "\\n" << graph.modules[op.module];
    if (op.saved_bytes > 0) out << "\\nsaves " << op.saved_bytes << " B";
    out << "\"]\n";
  }
  for (std::size_t v = 0; v < shown.size(); ++v) {
    const auto [first, last] = boost::out_edges(v, drawn);
    for (auto e = first; e != last; ++e) {
      const TensorEdge& tensor = graph.tensors[drawn[*e].tensor];
      out << v << " -> " << boost::target(*e, drawn) << " [label=\""
          << tensor::shape_text(tensor.shape) << " " << dtype_name(tensor.dtype) << "\"]\n";
    }
  }
  out << "}\n";
}

}  // namespace shardfit::graph
