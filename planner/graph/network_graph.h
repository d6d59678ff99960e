#pragma once
// The graph of a person's own network, put together from its operators. What one adds forward and
// backward depends on its constructor call, on the forms of what it reads and on who holds the
// gradients that arrive: operators that see the same run once, alone (part.h), however many there
// are. That is all of it because autograd runs nodes from the highest sequence number down, so that
// what an operator left for backward runs in one piece, and because nothing else changes what has
// been made; where something does, NotInParts is thrown.

#include <deque>
#include <memory>

#include "graph/first_seen.h"
#include "graph/part.h"

namespace shardfit::graph {

/// Runs a network in the machine's place, and sees its backward pass.
class NetworkGraph : public model::NetworkRunner, public tensor::OperatorRecorder {
 public:
  /// For as long as it lives.
  NetworkGraph(model::Machine& machine, Detail detail);
  ~NetworkGraph() override { machine_.networks = nullptr; }
  NetworkGraph(const NetworkGraph&) = delete;
  NetworkGraph& operator=(const NetworkGraph&) = delete;

  /// Gives tensors in the form of the network's results; the first has a node behind it, which is
  /// the whole network's.
  model::Value run(const model::Module& network, const model::Value* inputs,
                   std::size_t count) override;
  /// No operators run but the network's.
  std::int32_t ran(const Compute& cost, tensor::Tensors inputs, tensor::Tensors outputs) override;
  void backward_begins(const tensor::Tensor& root) override;
  void node_runs(const tensor::Node&) override {}

  /// The graph, after the step.
  ModelGraph finish();
  /// Operators of graphs that this thread has finished, and how many were run for them.
  struct Counts {
    std::int64_t operators = 0, run = 0;
  };
  static Counts counts();

 private:
  /// An operator of a call.
  struct By {
    std::int32_t call = -1;
    std::int32_t op = -1;
  };
  /// A value of the network. Equal numbers of bodies, storages, producers and slots are the same.
  struct Known {
    std::uint32_t form = 0;
    bool made = false;
    bool copies = false;
    std::uint32_t body = 0, storage = 0, producer = 0;
    std::int32_t slot = -1;  // -1: it wants no gradient
    std::uint32_t edge = 0;  // place of its tensor's number
    By by;
  };
  /// A storage that more than one part may see.
  struct Shared {
    std::uint32_t id = 0;  // among all
    std::int64_t bytes = 0;
    By maker, keeper;
    bool of_layers = false;  // several keep it
    bool kept = false;       // by a part so far
    bool viewed = false;     // another tensor is on it
  };
  struct Make {
    const model::CompiledClass* type = nullptr;
    model::ValueList takes;
    std::uint32_t number = 0;  // equal calls have the same
  };
  struct Call {
    const Part* part = nullptr;
    const Make* make = nullptr;
    bool joined = false, one_layer = false, reached = false;
    std::uint32_t first_read = 0, reads = 0;
    std::uint32_t result = 0;
    std::uint32_t layer = 0;           // of its first module
    std::uint32_t first_operator = 0;  // where all are kept
    const PartBackward* backward = nullptr;
  };
  struct Node;

  /// A part's faults are those of the network, which are found where it runs as a whole.
  template <class Run>
  static auto alone(const Run& run) {
    try {
      return run();
    } catch (const std::exception&) {
      throw NotInParts();
    }
  }

  // network_graph.cc: forward
  std::uint32_t input(const tensor::Tensor& tensor);
  std::vector<std::uint32_t> scope(const model::CompiledClass& type, const std::string& path,
                                   const std::vector<std::uint32_t>& inputs);
  std::uint32_t loop(const spec::Wiring& wiring, const spec::Wiring::Part& part,
                     const model::CompiledClass& type, const std::string& path,
                     const std::vector<std::uint32_t>& values);
  const Make& make_of(const model::CompiledClass& type, std::uint32_t number);
  std::uint32_t call(const Make& make, const spec::Wiring::Part& wired, const std::string& path,
                     const spec::Wiring::Read* reads, const std::vector<std::uint32_t>& values);
  void look_at_inputs(const Call& call);
  /// `last`: nothing behind it reads any of its inputs.
  const Part& part_of(const Call& call, bool last);
  void write_over(const Call& call);
  std::uint32_t result_of(const Call& call);
  void make_room(std::size_t more);
  void add_modules(Call& call, const std::string& path);
  void add_operators(Call& call, const std::string& path, std::uint32_t first_module);
  std::uint32_t edge_of(const Known& value);
  model::Value hand_out(const std::vector<std::uint32_t>& results, bool one);
  PartRunner::Asked asked(const Call& call) const;
  const Known& read(const Call& call, std::size_t i) const {
    return values_[reads_[call.first_read + i]];
  }

  // network_backward.cc
  static void run_backward(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out);
  void backward(tensor::Tensor&& gradient);
  void step_back(Call& call);
  void write_gradients(const Call& call, const tensor::Tensor& gradient);
  std::uint32_t see_body(const tensor::Tensor& tensor);
  void leave_gradients(const Call& call, tensor::Tensor& gradient);
  void count_saved();
  void add_work();
  std::uint32_t layer_of(By by) const;
  std::uint32_t layer_in(const Call& call, std::size_t op) const;

  model::Machine& machine_;
  tensor::Runtime& runtime_;
  const bool whole_;  // all operators are kept
  Forms forms_;
  PartRunner runner_;
  const model::Module* root_ = nullptr;
  ModelGraph graph_;
  std::int32_t loop_layer_ = -1;  // that all in the running loop's pass belong to

  std::vector<Known> values_;
  std::vector<std::uint32_t> reads_;  // values that calls read
  std::vector<Call> calls_;
  std::vector<Shared> storages_;
  std::uint32_t storage_ids_ = 0, bodies_ = 0, slots_made_ = 0;
  std::vector<bool> body_shared_;         // several values are that tensor
  std::vector<std::uint32_t> edges_;      // numbers of tensors, as far as they have one
  std::vector<std::uint32_t> own_edges_;  // of the part that is being added
  FirstSeen first_body_, first_storage_, first_producer_, first_slot_;
  std::vector<PartInput> inputs_;  // of the call at hand
  Words key_;
  std::unordered_map<const model::CompiledClass*, std::vector<const Make*>> makes_of_;
  WordsTable make_keys_, part_keys_, backward_keys_;
  std::pmr::monotonic_buffer_resource memory_;  // of parts
  std::pmr::deque<Make> makes_{&memory_};
  std::pmr::deque<Part> parts_{&memory_};
  std::pmr::deque<PartBackward> backwards_{&memory_};
  PartRunner::Ahead ahead_;

  std::uint32_t loss_ = 0;  // value
  std::vector<tensor::Tensor> slots_;
  std::vector<bool> reached_;  // slots
  std::vector<tensor::Tensor> kept_;
  std::vector<tensor::Tensor> given_;  // bodies at hand
  std::vector<std::uint32_t> uses_, storages_of_, bases_;
  std::vector<std::pair<tensor::Storage*, std::uint32_t>> at_hand_;  // storages, bodies on them
  FirstSeen first_at_hand_;
  std::vector<tensor::Tensor> made_, on_;  // bodies that come of them; one on each storage
};

}  // namespace shardfit::graph
