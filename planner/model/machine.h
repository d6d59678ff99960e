#pragma once
// Runs compiled model classes on tensors without values: builds the module tree, then its forward.

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "model/code.h"
#include "tensor/runtime.h"

namespace shardfit::model {

/// A parameter of the built model, in the order in which the framework lists them.
struct Parameter {
  std::string path;
  tensor::Tensor tensor;
  const Module* module = nullptr;
  int place = 0;  // among the module's tensors
};

/// A fault while a model's program runs: shapes that do not fit, a wrong kind of value. `where` is
/// the expression; `path` the module.
struct ModelError : std::runtime_error {
  ModelError(Location location, std::string module_path, const std::string& message)
      : std::runtime_error(message), where(std::move(location)), path(std::move(module_path)) {}
  Location where;
  std::string path;
};

/// What only a training program does: a framework's profile calls these by name.
struct Host {
  virtual ~Host() = default;
  /// One of host_functions(); `arguments` as the language gave them.
  virtual Value run(const std::string& name, Value* arguments) = 0;
};

/// What a wrapper does around the forward of the modules it wraps
/// (torch.nn.Module.register_forward_pre_hook, register_forward_hook).
struct ModuleHooks {
  virtual ~ModuleHooks() = default;
  /// May replace the arguments; they stay alive until the call has returned.
  virtual void before_forward(const Module& module, Value* arguments, std::size_t count) = 0;
  virtual void after_forward(const Module& module, Value& result) = 0;
  /// The same around what is a function here and a module without parameters in the original: an
  /// activation, a dropout. `site` tells one from another within `owner`.
  virtual void before_unit(const Module& owner, const void* site, Value& input) {
    static_cast<void>(owner), static_cast<void>(site), static_cast<void>(input);
  }
  /// `owner` reads a tensor of another module.
  virtual void before_read(const Module& owner, const tensor::Tensor& read) {
    static_cast<void>(owner), static_cast<void>(read);
  }
  virtual void after_unit(const Module& owner, const void* site, Value& result) {
    static_cast<void>(owner), static_cast<void>(site), static_cast<void>(result);
  }
};

/// May give what a call of a unit that recompute can wrap would give, without running it.
struct UnitCalls {
  virtual ~UnitCalls() = default;
  virtual Value call(const Module& unit, const Value* arguments, std::size_t count,
                     const std::function<Value()>& run) = 0;
};

/// Runs networks of numbers (spec::Wiring) in the machine's place; their modules are not built
/// then.
struct NetworkRunner {
  virtual ~NetworkRunner() = default;
  virtual Value run(const Module& network, const Value* inputs, std::size_t count) = 0;
};

/// Names and arguments of running calls: a stack in pieces that never move.
class ValueStack {
 public:
  /// `count` empty values; give them back last first.
  Value* take(std::size_t count);
  void give(Value* values, std::size_t count);

 private:
  static constexpr std::size_t piece = 4096;
  struct Piece {
    std::unique_ptr<Value[]> values;
    std::size_t size = 0, used = 0;
  };
  std::vector<Piece> pieces_;
  std::size_t at_ = 0;
};

/// Values on the stack for the length of a scope.
class Frame {
 public:
  Frame(ValueStack& stack, std::size_t count)
      : stack_(stack), count_(count), values_(stack.take(count)) {}
  ~Frame() { stack_.give(values_, count_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  Value* data() { return values_; }
  Value& operator[](std::size_t i) { return values_[i]; }

 private:
  ValueStack& stack_;
  std::size_t count_;
  Value* values_;
};

class Machine {
 public:
  Machine(tensor::Runtime& runtime_in, const Library& library_in, Globals& globals_in)
      : runtime(runtime_in), library(library_in), globals(globals_in) {}

  /// Makes a module and all below it, allocating parameters and buffers in construction order.
  const Module* build(const CompiledClass& type, ValueList takes, const std::string& path);
  /// What a module's constructor does on the device beside its parameters; its buffers come of it.
  void run_construct(Module& module);
  /// Points the tied parameters at their sources, which frees what they held.
  void tie();
  /// Gives every tensor of the model another dtype, and pictures' weights another format.
  static void convert(const Module& root, DType dtype, bool channels_last);
  /// Lists the parameters: a module's own before its children's, shared ones once.
  std::vector<Parameter> parameters(const Module& root) const;

  /// Runs a module's forward; arguments stay alive until it returns. Recomputed units go through
  /// `recompute` where it is set.
  Value call(const Module& module, Value* arguments, std::size_t count);
  Value call(const Module& module, ValueList arguments) {
    return call(module, arguments.data(), arguments.size());
  }
  /// The forward itself, without recompute. The arguments are the caller's, which keeps them.
  Value forward(const Module& module, const Value* arguments, std::size_t count);
  Value forward(const Module& module, const ValueList& arguments) {
    return forward(module, arguments.data(), arguments.size());
  }
  Value evaluate(const Code& code, const Module* self, Value* locals);
  /// What a constructor call hands over.
  ValueList takes_of(const Code& maker, const Module& parent) {
    return arguments_of(maker, 0, maker.callee->spec->takes.size(), &parent, nullptr);
  }
  /// Runs statements; true when one returned (then `result` is set).
  bool run(const std::vector<Step>& steps, const Module* self, Value* locals, Value& result);

  tensor::Runtime& runtime;
  const Library& library;
  Globals& globals;
  DType parameter_dtype = DType::bf16;
  bool training = true;
  /// Set where gradient checkpointing wraps units: gets the module, its arguments.
  std::function<Value(const Module&, ValueList)> recompute;
  /// Runs in place of a `with` block it knows; false: unknown.
  std::function<bool(const Value& what, const std::function<void()>& body)> within;
  Host* host = nullptr;
  UnitCalls* units = nullptr;
  NetworkRunner* networks = nullptr;
  std::function<void(Module&)> built;  // sees every module as soon as it is made
  ModuleHooks* hooks = nullptr;        // of modules that are `hooked`
  /// Where a hooked module is recomputed: the hooks run once around both (the unit was wrapped in a
  /// module that recomputes), or inside, each time the forward runs.
  bool hooks_around_recompute = false;
  std::deque<Module> modules;

 private:
  /// One call, or one module in another, for the length of a scope. Definitions that never end are
  /// refused here, long before the program's own stack is used up.
  class Nested {
   public:
    Nested(Machine& machine, const CompiledClass& type, const std::string& path)
        : depth_(machine.nested_) {
      if (depth_ == deepest) {
        throw ModelError(type.spec->where, path,
                         "'" + type.spec->name + "' contains itself: " + std::to_string(deepest) +
                             " of modules and calls inside one another");
      }
      ++depth_;
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    static constexpr int deepest = 100;
    int& depth_;
  };

  Value plain_forward(const Module& module, const Value* arguments, std::size_t count);
  template <class Run>
  Value hooked(const Module& module, const Value* arguments, std::size_t count, const Run& run);
  Value call_value(const Code& code, const Module* self, Value* locals);
  void make_tensors(Module& module);
  void make_wired(Module& module);
  Value run_wired(const Module& module, Value* values);
  Value call_part(const Module& callee, const spec::Wiring& wiring, const spec::Wiring::Part& part,
                  const Value* values, const Value& first);
  Value make_child(const Code& maker, const Module& parent, const std::string& path);
  Value make_of(const Code& code, const Module& parent, const std::string& path);
  ValueList arguments_of(const Code& code, std::size_t first, std::size_t count, const Module* self,
                         Value* locals);
  /// A plain function; it owns its arguments.
  Value call_function(const Code& code, const Module* self, Value* locals);
  void fill_defaults(const CompiledClass& type, Value* arguments, const Module* self);
  ValueStack stack_;
  int nested_ = 0;
  std::int64_t repeat_index_ = -1;
};

/// What a binary operator of the language gives; runtime_error where it does not take such values.
Value arithmetic(BinaryOp op, const Value& a, const Value& b);

/// A value's kind in words: "a tensor".
const char* kind_text(ValueKind kind);

/// Helpers of the builtins: a checked argument, or a ModelError-like runtime_error.
const tensor::Tensor& tensor_of(const Value& v, const char* what);
std::int64_t integer_of(const Value& v, const char* what);
tensor::Shape shape_of(const Value& v, const char* what);
/// A shape of which no size is negative.
tensor::Shape sizes_of(const Value& v, const char* what);

}  // namespace shardfit::model
