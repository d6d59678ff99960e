#pragma once
// A model's equal blocks in a row: in a pass a few at either end are run, those between are copied
// from them, forward and backward.

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/machine.h"
#include "program/block_names.h"
#include "program/equal_blocks.h"
#include "tensor/runtime.h"

namespace shardfit::program {

/// Blocks that have been copied turned out not to be alike: the job is to be run without copying.
struct BlocksDiffer : std::exception {
  const char* what() const noexcept override { return "blocks that looked alike are not"; }
};

/// Watches the calls of a model's recompute units. In a row of equal ones the second and the third
/// are compared: where both do the same to the program, with other storages, those after them but
/// for the last three are not run. The program gets the same instructions with other names, the
/// graph one node in place of the block's. Of the last three, the first that a backward pass comes
/// to may differ (library workspaces are made there); the next two are compared, and what they do
/// is then what the nodes' backward does, with the gradients that it leaves.
///
/// It is right where a block depends on nothing but its classes, constants, tensors and arguments:
/// there must be no wrapper around blocks, nothing that runs after a gradient is accumulated but
/// what looks at that gradient alone, no hook on saved tensors outside, no choice of blocks by
/// number. All else shows in the instructions, and where it does, all blocks are run; where it
/// shows too late, BlocksDiffer is thrown.
class BlockCopier : public model::UnitCalls, public tensor::NodeWatcher {
 public:
  struct Around {
    /// Whether all that runs after a gradient is accumulated looks at that gradient alone; empty:
    /// it does not.
    std::function<bool()> gradients_alone;
    /// Forward passes may go ahead of the backward passes, which come in their order.
    bool in_flight = false;
  };
  /// For as long as it lives; the model is whole.
  BlockCopier(model::Machine& machine, Around around);
  ~BlockCopier() override;
  BlockCopier(const BlockCopier&) = delete;
  BlockCopier& operator=(const BlockCopier&) = delete;

  model::Value call(const model::Module& unit, const model::Value* arguments, std::size_t count,
                    const std::function<model::Value()>& run) override;
  void node_begins(tensor::Node& node) override;
  void pass_ends() override;
  /// Blocks this thread has copied so far, forward.
  static std::int64_t copied();
  /// Throws BlocksDiffer where a copied block's graph went without its backward.
  void finish() const;

 private:
  /// A tensor that can be made over another storage.
  struct Made {
    std::uint32_t id = 0;
    tensor::Shape shape, stride;
    DType dtype = DType::f32;
    bool same_form(const Made& other) const {
      return shape == other.shape && stride == other.stride && dtype == other.dtype;
    }
  };
  /// What a block's forward or backward added to the program.
  struct Range {
    std::size_t first_instruction = 0, end_instruction = 0;
    std::uint32_t first_storage = 0, end_storage = 0;
    std::uint32_t first_event = 0, end_event = 0;
    std::uint64_t first_sequence = 0, end_sequence = 0;  // of nodes
    bool holds(std::uint32_t id) const { return id >= first_storage && id < end_storage; }
    bool holds_event(std::uint32_t id) const { return id >= first_event && id < end_event; }
  };
  struct Forward {
    Range range;
    Made input, output;
    std::uint32_t output_module = 0;  // of the node that made it
    std::size_t parts = 0;  // of the result, a list of the output and nothing else; 0: no list
    bool holds_input = false, holds_output = false;  // nodes do
    /// Casts that autocast's cache alone holds: of which of the block's tensors.
    std::vector<std::pair<std::size_t, Made>> casts;
    std::vector<std::uint32_t> kept;       // other storages that are left, for the backward
    std::vector<std::uint64_t> arguments;  // that come with the input, as numbers
    std::uint32_t edges = 0;               // that lead to the node of the input
    bool copyable = false;
  };
  struct Backward {
    Range range;
    Made incoming, outgoing;                         // gradients of output and input
    std::vector<std::optional<Made>> before, after;  // of the block's tensors
    std::uint32_t references = 0;  // to the node of the output, but for edges of the next block
    bool frees_incoming = false, frees_input = false, frees_output = false;
    bool copyable = false;
  };
  struct Row;
  /// A block in a pass.
  struct Call {
    const EqualBlock* block = nullptr;
    Row* row = nullptr;
    bool copied = false;
    const tensor::Node* output_node = nullptr;
    const tensor::Node* input_node = nullptr;
    std::uint32_t output_place = 0, input_place = 0;
    int visits = 0;  // of the backward pass
    Forward forward;
    Backward backward;
  };
  /// A row in a pass.
  struct Row {
    std::vector<Call*> calls;  // by place
    std::size_t passed = 0;    // of them, backward too
    bool forward = false;      // that of the third block may be copied
    bool backward = false;     // that of the third to last may be
    bool copied = false;       // some of it was
  };
  struct Held;

  /// Blocks of a row that are run at its beginning and at its end. The last may make what stays:
  /// in the backward pass the two before it are compared, and the first of those is copied.
  static constexpr std::size_t first_run = 3, last_run = 3;

  static void copied_backward(tensor::Node& node, tensor::Gradients& in, tensor::Gradients& out);

  bool settled() const;
  Row& row_of(const EqualBlock& block);
  void forget_passed();
  Range here() const;
  void close(Range& range) const;
  static Made made_of(const tensor::Tensor& tensor);
  tensor::Tensor make(const Made& form, std::uint32_t id) const;
  std::vector<std::optional<Made>> gradients(const EqualBlock& block) const;

  // block_copier.cc
  model::Value run_forward(const EqualBlock& block, Row& row, const model::Value* arguments,
                           std::size_t count, const std::function<model::Value()>& run);
  bool look_at_result(Call& call, const model::Value& result) const;
  bool look_at_casts(Call& call, std::size_t casts_before) const;
  bool look_at_forward(Call& call) const;
  bool same_forward(const Call& a, const Call& b);
  model::Value copy_forward(const EqualBlock& block, Row& row, const tensor::Tensor& input);

  // block_copier_backward.cc
  static std::uint32_t references_beside(const Call& call);
  static BlockNames names_between(const Call& from, const Forward& as, std::uint32_t first_storage,
                                  std::uint32_t incoming,
                                  const std::vector<std::optional<Made>>& gradients);
  static bool same_forms(const std::vector<std::optional<Made>>& a,
                         const std::vector<std::optional<Made>>& b);
  void begin_backward(Call& call, const tensor::Node& node);
  void end_backward(Call& call);
  bool look_at_backward(Call& call) const;
  bool same_backward(const Call& a, const Call& b);
  void copy_backward(Call& call, Held& held, tensor::Gradients& in, tensor::Gradients& out);

  /// How names go from one block to another.
  struct Renaming {
    ModuleNames modules;
    std::vector<std::uint32_t> computes;  // by index: the other's, one more; 0: not known yet
  };
  Renaming& between(const EqualBlock& from, const EqualBlock& to);
  std::uint32_t compute_as(std::uint32_t compute, Renaming& renaming);

  /// Both ranges, of two blocks, do the same, under the names of one for those of the other.
  bool same_stream(const Range& a, const EqualBlock& of_a, const Range& b, const EqualBlock& of_b,
                   const BlockNames& names);
  /// Appends a range of one block as what another does. `like`: a range of a third, whose storages
  /// have by now all that is said of them.
  void append(const Range& range, const EqualBlock& of, const EqualBlock& as,
              const BlockNames& names, const Range& like, const EqualBlock& of_like);

  model::Machine& machine_;
  tensor::Runtime& runtime_;
  std::map<const model::Module*, EqualBlock> blocks_;
  std::map<std::pair<const EqualBlock*, const EqualBlock*>, Renaming> renamings_;
  Around around_;
  std::list<Row> rows_;               // oldest first
  std::map<std::size_t, Row*> last_;  // of each number
  std::deque<Call> calls_;            // in their order; none moves as others come and go
  Call* at_ = nullptr;                // whose backward runs
  const Call* newest_ = nullptr;      // of this backward pass
  bool inside_ = false;               // a unit's forward runs
  std::shared_ptr<bool> lost_ = std::make_shared<bool>(false);
};

}  // namespace shardfit::program
