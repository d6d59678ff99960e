#pragma once
// What the foreign instance files say, each as a plain struct. Readers check everything and throw
// InputError with file:line:column; a value that is here is within its range and every reference
// between its entries holds.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostic.h"

namespace shardfit::partition {

/// dnn-partitioning (MIT, github.com/msr-fiddle/dnn-partitioning): a graph of layers or operators
/// to place on accelerators and CPUs. Latencies and costs in ms, sizes in bytes.
struct PlacementInstance {
  struct Node {
    std::int64_t id = 0;
    std::string name;
    double accelerator_ms = 0;
    double cpu_ms = 0;
    double bytes = 0;
    bool backward = false;
    bool accelerator_supported = true;
    std::optional<std::int64_t> colour;  // nodes of one colour share a device
  };
  struct Edge {
    int source = 0;  // index into nodes
    int destination = 0;
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<double> send_ms;  // by node: what each device pays once if an edge of it crosses
  double accelerator_bytes = 0;
  int accelerators = 0;
  int cpus = 0;
};

/// Piper (MIT, github.com/msr-fiddle/piper): a graph of layers with variants per tensor degree.
struct PiperInstance {
  struct Variant {
    std::string id;                 // "vanilla", "activation recomp"
    double time_per_sample = 0;     // forward + backward
    double parameter_bytes = 0;     // w
    double bytes_per_inflight = 0;  // A: bytes for each micro-batch in flight
    double bytes_fixed = 0;         // B
    std::vector<double> sync_in;    // bytes, aligned with Node::incoming
    std::vector<double> sync_out;   // bytes, aligned with Node::outgoing
  };
  struct Node {
    std::int64_t id = 0;
    std::string name;
    std::vector<std::vector<Variant>> variants;  // aligned with tensor_degrees; empty: not offered
    std::vector<int> incoming, outgoing;         // edge indices
  };
  struct Edge {
    int source = 0;
    int destination = 0;
    double bytes = 0;
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<int> tensor_degrees;  // ascending, the union over the nodes
  double device_bytes = 0;
  double bandwidth = 0;  // bytes/s from one device to the outside
  int devices = 0;
  int microbatches = 0;  // in a batch
};

/// PipeDream graph.txt (MIT, github.com/msr-fiddle/pipedream): a profile of layers. Times in ms.
struct ProfileInstance {
  struct Node {
    std::string id;
    std::string description;
    double forward_ms = 0;
    double backward_ms = 0;
    double activation_bytes = 0;
    double parameter_bytes = 0;
    int stage = -1;  // the peer's stage where the file carries one
  };
  struct Edge {
    int source = 0;
    int destination = 0;
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

/// The profile as its solver partitions it: sources whose description starts with "Input" and sinks
/// whose description starts with "__getitem__" are left out (PipeDream's
/// optimizer_graph_hierarchical.py does so first).
ProfileInstance without_inputs(const ProfileInstance& profile);

/// rotor chain: block i reads out[i-1] and writes out[i]; saved[i] is all its backward needs when
/// nothing is recomputed, its output included.
struct ChainInstance {
  std::string name;
  std::vector<double> forward_ms, backward_ms, out_bytes, saved_bytes;
  int length() const { return static_cast<int>(forward_ms.size()); }
};

/// minimalloc CSV (Apache-2.0, github.com/google/minimalloc): buffers with lifetimes [lower,
/// upper).
struct BufferInstance {
  struct Buffer {
    std::string id;
    std::int64_t lower = 0;
    std::int64_t upper = 0;
    std::int64_t size = 0;
  };
  std::vector<Buffer> buffers;
  std::optional<std::int64_t> capacity;  // the number in the file name NAME.CAPACITY.csv
};

enum class InstanceFormat { placement, piper, profile, chain, buffers };

/// The format of a text, told by its content (JSON keys, CSV header, graph lines), or nothing.
std::optional<InstanceFormat> detect_format(const SourcePtr& source);

/// Each reads one format. Throws InputError naming place, what was found and what was expected.
PlacementInstance read_placement(const SourcePtr& source);
PiperInstance read_piper(const SourcePtr& source);
ProfileInstance read_profile(const SourcePtr& source);
ChainInstance read_chain(const SourcePtr& source);
BufferInstance read_buffers(const SourcePtr& source);

}  // namespace shardfit::partition
