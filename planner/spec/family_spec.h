#pragma once
// A family of models as data: named dimensions, module classes and their forward programs
// (model_specs/families/*.yaml; docs/model_language.md).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spec/language/syntax.h"

namespace shardfit::spec {

/// A named number of a model, read from its file or worked out from others.
struct DimensionSpec {
  std::string name;
  std::optional<Expr> fallback;   // without one the model must give it
  std::vector<std::string> from;  // keys it may stand under, with dots; empty: its own name
  bool may_be_none = false;
  Location where;
};

/// A parameter or buffer: `shape` gives a list of sizes, or none where the module has none.
struct TensorSpec {
  std::string name;
  Expr shape;
  std::string dtype;  // empty: the model's
  bool host = false;  // made on the host; on the device when the framework moves the model there
  std::optional<Expr> counted;  // of a buffer: published counts of parameters include it where true
  Location where;
};

struct ChildSpec {
  std::string name;
  Expr make;  // a constructor call, repeat(n, call), or a choice with none
  Location where;
};

struct ArgumentSpec {
  std::string name;
  std::optional<Expr> fallback;
};

struct ConstantSpec {
  std::string name;
  Expr value;
};

/// A network whose forward calls its modules one after another, in numbers instead of statements:
/// what a graph of a person's own becomes, of 10^5 operators and more. Values are numbered: the
/// class's inputs, then what each part gives.
struct Wiring {
  enum class Goes : std::uint8_t { stays, after, before };  // the value: dropped after the call
  struct Read {
    std::uint32_t value = 0;
    Goes goes = Goes::stays;
  };
  /// A module, or a list of modules (a loop) each of which gets what the one before gave.
  struct Part {
    std::string name;
    std::uint32_t make = 0;    // its constructor call; of a loop the place of its first in `passes`
    std::uint32_t passes = 0;  // of a loop
    std::uint32_t first = 0;   // of what it reads
    std::uint32_t reads = 0;
    bool loop = false;
    bool joined = false;  // what it reads is handed over as one list
  };
  std::vector<Expr> makes;  // equal ones once; the place in each is that of the first part made so
  std::vector<std::uint32_t> passes;
  std::vector<Part> parts;
  std::vector<Read> reads;
  std::vector<std::uint32_t> results;
  bool one_result = false;  // else a list
};

/// A module class, or a plain function where it has only inputs and a forward.
struct ClassSpec {
  std::string name;
  std::vector<ArgumentSpec> takes;
  std::vector<ConstantSpec> constants;
  std::vector<TensorSpec> parameters;
  std::vector<TensorSpec> buffers;
  std::vector<ChildSpec> children;
  std::vector<std::string> first;  // children built before all else, though listed in their place
  std::vector<ArgumentSpec> inputs;
  std::vector<Statement> construct;  // what the constructor does on the device besides
  std::vector<Statement> forward;
  std::shared_ptr<const Wiring> wiring;  // in place of children and forward
  bool recompute_unit = false;  // gradient checkpointing wraps it
  bool is_linear = false;       // an adapter may take its place
  std::string summary, saves, source;  // of a kind of operators: for people
  Location where;
};

struct TieSpec {
  Expr when;
  std::string target;  // path of a parameter that becomes...
  std::string source;  // ...this one
  Location where;
};

struct FamilySpec {
  std::string name;
  std::string summary;
  std::string source;
  std::vector<std::string> model_types;  // of Hugging Face config.json
  std::string framework;                 // whose own model this is; empty: any program's
  std::vector<DimensionSpec> dimensions;
  std::string built_in;                  // dtype of construction; empty: the job's
  std::vector<std::string> dropouts;     // dimensions that are dropout rates
  std::vector<ConstantSpec> checks;      // name: message; value must be true
  std::optional<Expr> longest_sequence;  // where positions are learned: tokens that have one
  std::vector<std::pair<std::string, std::string>> heads;  // head -> class
  std::vector<ClassSpec> classes;                          // of the family, then of the library
  std::vector<TieSpec> ties;
  bool own_batch = false;    // it makes its batches itself: pictures, latents, sound, tables
  bool asks_for_batch = false;  // the framework's program calls make_batch
  Location where;

  const ClassSpec* find_class(const std::string& class_name) const;
};

/// Reads a family; classes of `library` files are added where the family does not define them
/// itself, those of `replacing` files win over both. Kept while the files stay as they are. Throws
/// InputError.
std::shared_ptr<const FamilySpec> read_family(const std::string& path,
                                              const std::vector<std::string>& library,
                                              const std::vector<std::string>& replacing = {});

}  // namespace shardfit::spec
