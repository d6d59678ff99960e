#pragma once
// Sees the operators of one part that runs alone.

#include "graph/part.h"
#include "tensor/recorder.h"

namespace shardfit::graph {

/// Where a gradient goes that leaves the part.
struct Leaving : tensor::NodeExtra {
  std::uint32_t input = 0;
  tensor::Tensor* to = nullptr;
};
/// The node of an input: the gradient that has gathered there leaves the part.
void leave(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out);
/// Null where the node is of the part itself.
inline const Leaving* leaving_of(const tensor::Node& node) {
  return node.backward == leave ? static_cast<const Leaving*>(node.extra.get()) : nullptr;
}

/// One for all parts, one after another.
class PartRecorder : public tensor::OperatorRecorder {
 public:
  /// All that the runtime's program has before a part is built stays there.
  explicit PartRecorder(tensor::Runtime& runtime);

  /// A part is about to be built; `inputs` must stay as they are until it is over.
  void begin(const std::vector<PartInput>& inputs);
  /// The inputs' tensors, before anything runs; their producers are numbers below theirs.
  void see_inputs(const std::vector<tensor::Tensor>& inputs);
  /// Everything of the part is gone: what it left in the program goes too.
  void end();

  std::int32_t ran(const Compute& cost, tensor::Tensors inputs, tensor::Tensors outputs) override;
  void backward_begins(const tensor::Tensor& root) override;
  void node_runs(const tensor::Node& node) override;

  /// Fills the part from the forward of the machine's modules, which gave `result`.
  void finish(const model::Machine& machine, const tensor::Tensor& result,
              const PartRunner::Asked& asked, Part& part);
  const std::vector<Work>& work() const { return work_; }

 private:
  static constexpr std::uint32_t none = 0xffffffff;
  struct Keep {
    std::uint32_t storage = 0;
    std::int32_t operation = -1;  // as the runtime counts them
  };
  /// A tensor that is no output of the part's operators.
  struct Other {
    std::int32_t producer = -1;
    Place place;
    std::uint32_t next = none;  // on the same storage
  };
  struct Seen {
    Place place;
    std::uint32_t others = none;
  };
  struct Count {
    std::int32_t operation = -1;  // the first that keeps it
    bool shared = false;          // of several layers
  };

  Seen& seen(std::uint32_t storage);
  Place storage_place(std::uint32_t storage);
  /// Gives the tensor of that producer on that storage a place, unless it has one; the one it has.
  Place other_place(std::int32_t producer, std::uint32_t storage, Place place);
  const Other* find_other(std::int32_t producer, std::uint32_t storage);
  /// An operator by the runtime's number: those below the inputs' number are their producers.
  Place operator_place(std::int32_t number) const;
  Place link(const tensor::Tensor& tensor);
  Place new_tensor(const tensor::Tensor& tensor, std::int32_t producer);
  void read_nodes(const tensor::Tensor& result);
  void count_saved(bool one_layer, const tensor::Tensor& result, Part& part);
  void list_modules(const model::Machine& machine, bool named, Part& part);

  tensor::Runtime& runtime_;
  std::uint32_t modules_, first_storage_, instructions_;  // the program's before a part
  const std::vector<PartInput>* inputs_ = nullptr;
  std::uint64_t first_node_ = 0;
  Seen without_storage_;
  std::vector<Seen> seen_;           // by storage
  std::vector<std::uint32_t> ids_;   // of its own storages
  std::vector<std::int32_t> makers_;  // of them
  std::vector<Other> others_;
  std::vector<PartOperator> operators_;
  std::vector<Place> links_;
  std::vector<PartTensor> tensors_;
  std::vector<std::pair<std::uint32_t, std::int32_t>> writes_;
  std::vector<Keep> keeps_;
  std::vector<Count> counts_;
  std::vector<std::uint32_t> reached_;
  std::vector<const tensor::Node*> nodes_, open_;
  std::vector<const tensor::TensorBody*> parameters_;
  bool whole_ = false;  // the forward is over
  std::int32_t current_ = -1;
  std::vector<Work> work_;
};

}  // namespace shardfit::graph
