#pragma once
// Model classes with every name resolved: what the machine runs.

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/value.h"
#include "spec/family_spec.h"

namespace shardfit::model {

class Machine;
struct CompiledClass;

/// A function of the language written in C++: `arguments` has one place a parameter of its
/// signature; places not given hold none.
using Builtin = Value (*)(Machine& machine, Value* arguments);

struct BuiltinRow {
  const char* name;
  std::vector<const char*> parameters;
  int required;
  Builtin run;
};
/// All of them; builtins/*.cc.
const std::vector<BuiltinRow>& builtin_table();

enum class Op : std::uint8_t {
  constant,
  local,         // a: slot
  child,         // a: index
  parameter,     // a: index among parameters, then buffers
  own_constant,  // a: index among takes, then constants
  global,        // a: index among dimensions and job words
  call_builtin,
  call_class,  // a plain function
  call_value,  // first child gives a module
  binary,
  unary,
  choice,
  index,
  list,
  attribute,  // first child gives a module; value.text the name
};

enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  div,
  floor_div,
  mod,
  pow,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  both,
  either,
  in
};

struct Code {
  Op op = Op::constant;
  BinaryOp binary = BinaryOp::add;
  int a = 0;
  Value value;
  Builtin builtin = nullptr;
  const CompiledClass* callee = nullptr;
  std::vector<Code> children;         // arguments in the order written
  std::vector<int> places;            // of each argument in the signature; by position: -1 - index
  std::vector<std::string> keywords;  // of call_value: names to look up when called
  bool unit = false;  // a call that the original makes to a module without parameters
  const spec::Expr* source = nullptr;
};

struct Step {
  spec::StatementKind kind = spec::StatementKind::evaluate;
  std::vector<int> slots;
  Code value;
  std::vector<Step> body, otherwise;
};

struct CompiledClass {
  const spec::ClassSpec* spec = nullptr;
  std::vector<std::string> locals;   // inputs first
  std::vector<Code> input_defaults;  // constant: none where required
  std::vector<bool> input_required;
  std::vector<Step> forward, construct;
  std::vector<Code> take_defaults;
  std::vector<Code> constants;
  std::vector<Code> parameter_shapes, buffer_shapes;
  std::vector<Code> child_makers;  // one a child; of a wiring one a make
  std::vector<Code> ties;
  int slots = 0;
  std::vector<std::string> construct_locals;  // names that are parameters or buffers become these
};

/// A module of a built model.
struct Module {
  const CompiledClass* type = nullptr;
  std::string path;
  std::uint32_t label = 0;              // index into Program::modules
  std::vector<Value> constants;         // takes, then constants
  std::vector<tensor::Tensor> tensors;  // parameters, then buffers; empty where absent
  std::vector<Value> children;
  const Module* replaced_by = nullptr;  // an adapter that wraps it
  bool hooked = false;                  // the machine's hooks run around its forward
  bool output_wants_gradient = false;   // a forward hook sets requires_grad on its output
};

/// Calls visit(child) for each module right below one, those in lists too, in order.
template <class Visit>
void for_each_child(const Module& module, Visit visit) {
  for (const Value& child : module.children) {
    if (child.kind == ValueKind::module) visit(*child.module);
    if (child.kind != ValueKind::list) continue;
    for (const Value& item : *child.list) {
      if (item.kind == ValueKind::module) visit(*item.module);
    }
  }
}

/// Named numbers of a model and words of the job, in a fixed order.
struct Globals {
  std::vector<std::string> names;
  std::vector<Value> values;
  std::deque<std::string> texts;  // storage of text values
  int find(const std::string& name) const;
  /// A number by its name; 0 where there is none.
  std::int64_t integer(const std::string& name) const;
  void set(const std::string& name, Value value);
  void set_text(const std::string& name, const std::string& text);
};

/// Classes with the names of all of them resolved. Throws InputError for names nobody defines.
class Library {
 public:
  Library(const spec::FamilySpec& family, const Globals& globals);
  const CompiledClass* find(const std::string& name) const;
  const spec::FamilySpec& family() const { return family_; }

 private:
  friend class Binder;
  const spec::FamilySpec& family_;
  std::map<std::string, std::unique_ptr<CompiledClass>> classes_;
  std::deque<std::string> texts_;
};

/// The family's classes, bound once for each list of the globals' names and kept: numbers of a job
/// or a model do not change what a name stands for. Throws InputError as Library does.
std::shared_ptr<const Library> bind_family(std::shared_ptr<const spec::FamilySpec> family,
                                           const Globals& globals);

/// An expression outside any class (a dimension's default, a check), over globals only.
Code bind_expression(const spec::Expr& expression, const Globals& globals, Library* library,
                     std::deque<std::string>& texts, Diagnostics& faults);

}  // namespace shardfit::model
