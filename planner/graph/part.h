#pragma once
// What one operator of a person's graph does to the graph of the whole (network_graph.h): found by
// running it alone, forward and backward, once for all that see the same.

#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "base/number_table.h"
#include "graph/model_graph.h"
#include "graph/words.h"
#include "model/machine.h"

namespace shardfit::graph {

/// The graph cannot be put together from parts: the network is to be run as a whole.
struct NotInParts : std::exception {
  const char* what() const noexcept override { return "the network is not the sum of its parts"; }
};

/// All that operators look at in a tensor without values.
struct Form {
  DType dtype = DType::f32;
  tensor::Shape shape, stride;
  bool operator==(const Form&) const = default;
};

/// Forms by number, each once.
class Forms {
 public:
  std::uint32_t number(const tensor::TensorBody& tensor);
  const Form& operator[](std::uint32_t number) const { return forms_[number]; }

 private:
  NumberTable numbers_;
  std::vector<Form> forms_;
};

/// Something of a part by number, or what came with an input.
struct Place {
  static constexpr std::int32_t none = std::numeric_limits<std::int32_t>::min();
  std::int32_t at = none;
  static Place own(std::size_t i) { return {static_cast<std::int32_t>(i)}; }
  static Place of_input(std::size_t i) { return {-1 - static_cast<std::int32_t>(i)}; }
  bool known() const { return at != none; }
  bool is_own() const { return at >= 0; }
  std::size_t own() const { return static_cast<std::size_t>(at); }
  std::size_t input() const { return static_cast<std::size_t>(-1 - at); }
  bool operator==(const Place&) const = default;
};

/// A value that a part reads. Of body, storage, producer and slot (where its gradient gathers): the
/// first of its inputs that has the same.
struct PartInput {
  std::uint32_t form = 0;
  bool wants_gradient = false;
  bool made = false;    // by an operator
  bool copies = false;  // that operator copies parameters
  std::uint32_t body = 0, storage = 0, producer = 0, slot = 0;
};

struct PartOperator {
  const char* kind = "";
  std::uint32_t module = 0;  // of the part's
  bool view = false;
  bool copies = false;  // reads nothing but parameters and their copies
  std::uint32_t first_link = 0, inputs = 0, outputs = 0;
  Work forward;
  std::int64_t saved_bytes = 0, weight_copy_bytes = 0;  // in storages of the part alone
};

struct PartTensor {
  tensor::Shape shape;
  DType dtype = DType::f32;
  Place storage;
  std::int32_t producer = -1;  // operator
  bool parameter = false;
  std::string name;  // of a parameter: its path below the part's
};

struct PartModule {
  std::string path;  // below the part's
  std::int64_t parameters = 0, parameter_bytes = 0;
};

struct Part {
  /// There may be as many parts as operators: what they list comes from one place.
  explicit Part(std::pmr::memory_resource* memory)
      : modules(memory),
        operators(memory),
        links(memory),
        tensors(memory),
        writes(memory),
        keeps(memory),
        reached(memory) {}

  std::uint32_t number = 0;
  std::pmr::vector<PartModule> modules;
  std::pmr::vector<PartOperator> operators;
  std::pmr::vector<Place> links;         // tensors of operators, inputs first
  std::pmr::vector<PartTensor> tensors;  // in the order in which the operators come to them
  /// What it gives. An own slot is that of the node that made it; none: it wants no gradient.
  std::uint32_t form = 0;
  Place body, storage, producer, slot;
  std::int64_t bytes = 0;   // of its own storage
  std::int32_t maker = -1;  // the operator that allocated that
  std::uint32_t storages = 0;
  /// Operators that write over an input's storage, in their order: the input, the operator.
  std::pmr::vector<std::pair<std::uint32_t, std::int32_t>> writes;
  /// What nodes keep of storages that others see too: the storage, the operator.
  std::pmr::vector<std::pair<Place, Place>> keeps;
  std::pmr::vector<std::uint32_t> reached;  // inputs, by slot, that gradients go to
  bool in_place = false;                    // an input has another history than before
  bool view = false;                        // it gives a view of another tensor
};

/// What a part's backward does where gradients are as some words say (below).
struct PartBackward {
  explicit PartBackward(std::pmr::memory_resource* memory)
      : work(memory), bodies(memory), results(memory), kept(memory) {}

  std::pmr::vector<Work> work;  // by operator
  struct Body {
    std::int32_t given = -1;    // one that was there
    std::uint32_t form = 0;     // of a new one
    std::uint32_t storage = 0;  // those given come first
    std::int32_t base = -1;
  };
  std::pmr::vector<Body> bodies;
  std::pmr::vector<std::int32_t> results;  // body of each slot reached; -1: no gradient
  std::pmr::vector<std::uint32_t> kept;    // storages that gradients of parameters hold
  std::uint32_t storages = 0;              // that are new
};

/// Gradients at a moment: that of a part's result, then those that wait in the slots it reaches,
/// with all that decides what becomes of them. In words: the part; the number of gradients, of each
/// its body (or no_body); the number of bodies, of each its form, its storage, its base + 1 and
/// whether others hold it; the number of storages, of each whether others hold it.
constexpr std::uint32_t no_body = 0xffffffff;

/// Runs parts alone.
class PartRunner {
 public:
  /// As the machine of the whole would.
  PartRunner(const model::Machine& whole, Forms& forms);
  ~PartRunner();
  PartRunner(const PartRunner&) = delete;
  PartRunner& operator=(const PartRunner&) = delete;

  struct Asked {
    const model::CompiledClass* type = nullptr;
    const model::ValueList* takes = nullptr;
    bool joined = false;     // its inputs are handed over as one list
    bool one_layer = false;  // all its modules belong to one layer
    bool all = false;        // its tensors are wanted, and what operators read and make
    const std::vector<PartInput>* inputs = nullptr;
  };
  /// A backward that was run right behind its forward, which saves running that again.
  struct Ahead {
    bool ran = false;
    Words gradients;  // the state in which it ran
    PartBackward backward;
  };
  /// Runs the part, which has its number, and where `ahead` is given its backward too: as if one
  /// gradient came that nobody else has, the first of each input. Throws NotInParts, and what
  /// running it throws.
  void forward(const Asked& asked, Part& part, Ahead* ahead);
  void backward(const Asked& asked, const Part& part, const Words& gradients, PartBackward& out);

 private:
  struct Run;
  void begin(const Asked& asked);
  void call(const Asked& asked);
  void step_back(const Part& part, const Words& gradients, PartBackward& out);
  /// The words of a gradient for `result`, the first of all.
  void first_gradient(const Part& part, const tensor::Tensor& result, Words& words);
  /// What has become of gradients, when the pass is over.
  void describe(const Part& part, std::uint32_t first_new, PartBackward& out);

  const model::Machine& whole_;
  Forms& forms_;
  tensor::Runtime runtime_;
  model::Machine machine_;
  std::unique_ptr<Run> run_;
};

}  // namespace shardfit::graph
