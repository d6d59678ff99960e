#include "model/code.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace shardfit::model {
namespace {

using spec::Expr;
using spec::ExprKind;
using spec::Statement;
using spec::StatementKind;

int index_of(const std::vector<std::string>& names, const std::string& name) {
  const auto it = std::find(names.begin(), names.end(), name);
  return it == names.end() ? -1 : static_cast<int>(it - names.begin());
}

BinaryOp binary_op(const std::string& text) {
  static const std::map<std::string, BinaryOp> table = {
      {"+", BinaryOp::add},  {"-", BinaryOp::sub},        {"*", BinaryOp::mul},
      {"/", BinaryOp::div},  {"//", BinaryOp::floor_div}, {"%", BinaryOp::mod},
      {"**", BinaryOp::pow}, {"==", BinaryOp::eq},        {"!=", BinaryOp::ne},
      {"<", BinaryOp::lt},   {"<=", BinaryOp::le},        {">", BinaryOp::gt},
      {">=", BinaryOp::ge},  {"and", BinaryOp::both},     {"or", BinaryOp::either},
      {"in", BinaryOp::in},
  };
  return table.at(text);
}

/// Operators that the families call where the original calls a module: torch.nn.SiLU, Dropout.
bool is_unit(const std::string& name) {
  return name == "silu" || name == "gelu" || name == "relu" || name == "bloom_gelu" ||
         name == "dropout";
}

/// Names with their places; the first of a name counts.
using Places = std::unordered_map<std::string_view, int>;

Places places_of(const std::vector<std::string>& names) {
  Places places;
  places.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) places.emplace(names[i], static_cast<int>(i));
  return places;
}

void collect_targets(const std::vector<Statement>& body, std::vector<std::string>& names,
                     Places& known) {
  for (const Statement& s : body) {
    if (s.kind == StatementKind::assign || s.kind == StatementKind::loop) {
      for (const std::string& name : s.targets) {
        if (known.emplace(name, 0).second) names.push_back(name);
      }
    }
    collect_targets(s.body, names, known);
    collect_targets(s.otherwise, names, known);
  }
}

/// Adds the names that statements bind.
void collect_targets(const std::vector<Statement>& body, std::vector<std::string>& names) {
  const std::vector<std::string> before = names;
  Places known = places_of(before);
  collect_targets(body, names, known);
}

}  // namespace

int Globals::find(const std::string& name) const { return index_of(names, name); }

std::int64_t Globals::integer(const std::string& name) const {
  const int i = find(name);
  return i < 0 ? 0 : values[static_cast<std::size_t>(i)].integer;
}

void Globals::set(const std::string& name, Value value) {
  const int i = find(name);
  if (i >= 0) {
    values[static_cast<std::size_t>(i)] = std::move(value);
  } else {
    names.push_back(name);
    values.push_back(std::move(value));
  }
}

void Globals::set_text(const std::string& name, const std::string& text) {
  texts.push_back(text);
  set(name, Value::of_text(&texts.back()));
}

class Binder {
 public:
  Binder(const Globals& globals, Library* library, std::deque<std::string>& texts,
         Diagnostics& faults)
      : globals_(globals), library_(library), texts_(texts), faults_(faults) {}

  void use_class(const CompiledClass& type) {
    type_ = &type;
    members_.clear();
    const spec::ClassSpec& s = *type.spec;
    const auto add = [this](const auto& list, Op op, int& place) {
      for (const auto& one : list) members_.emplace(one.name, Member{op, place++});
    };
    int place = 0;
    add(s.children, Op::child, place);
    place = 0;
    add(s.parameters, Op::parameter, place);
    add(s.buffers, Op::parameter, place = static_cast<int>(s.parameters.size()));
    add(s.takes, Op::own_constant, place = 0);
    add(s.constants, Op::own_constant, place);
  }
  /// While children are made, calls name classes, never the module's own children.
  void making_children(bool making) { making_ = making; }
  void use_locals(const std::vector<std::string>* locals) {
    locals_ = locals;
    places_ = locals ? places_of(*locals) : Places{};
  }

  Code bind(const Expr& e) {
    Code c;
    c.source = &e;
    switch (e.kind) {
      case ExprKind::none:
        break;
      case ExprKind::boolean:
        c.value = Value::of_bool(e.integer != 0);
        break;
      case ExprKind::integer:
        c.value = Value::of(e.integer);
        break;
      case ExprKind::real:
        c.value = Value::of_real(e.real);
        break;
      case ExprKind::text:
        c.value = Value::of_text(keep(e.text));
        break;
      case ExprKind::name:
        bind_name(e, c);
        break;
      case ExprKind::call:
        bind_call(e, c);
        break;
      case ExprKind::binary:
        c.op = Op::binary;
        c.binary = binary_op(e.text);
        bind_children(e, c);
        break;
      case ExprKind::unary:
        c.op = Op::unary;
        c.a = e.text == "not" ? 1 : 0;
        bind_children(e, c);
        break;
      case ExprKind::choice:
        c.op = Op::choice;
        bind_children(e, c);
        break;
      case ExprKind::index:
        c.op = Op::index;
        bind_children(e, c);
        break;
      case ExprKind::list:
        c.op = Op::list;
        bind_children(e, c);
        break;
      case ExprKind::attribute:
        c.op = Op::attribute;
        c.value = Value::of_text(keep(e.text));
        bind_children(e, c);
        break;
    }
    return c;
  }

  std::vector<Step> bind_all(const std::vector<Statement>& body) {
    std::vector<Step> out;
    for (const Statement& s : body) {
      Step step;
      step.kind = s.kind;
      for (const std::string& target : s.targets) step.slots.push_back(place_of(target));
      step.value = bind(s.value);
      step.body = bind_all(s.body);
      step.otherwise = bind_all(s.otherwise);
      out.push_back(std::move(step));
    }
    return out;
  }

 private:
  const std::string* keep(const std::string& text) {
    texts_.push_back(text);
    return &texts_.back();
  }

  int place_of(const std::string& target) const {
    const auto it = places_.find(target);
    return it == places_.end() ? -1 : it->second;
  }

  struct Signature {
    std::vector<std::string> names;
    int required = 0;
  };
  const Signature& signature_of(const std::vector<spec::ArgumentSpec>& arguments) {
    const auto [known, fresh] = signatures_.try_emplace(&arguments);
    Signature& signature = known->second;
    if (!fresh) return signature;
    for (const auto& a : arguments) {
      signature.names.push_back(a.name);
      if (!a.fallback) signature.required = static_cast<int>(signature.names.size());
    }
    return signature;
  }

  void bind_children(const Expr& e, Code& c) {
    for (const Expr& child : e.children) c.children.push_back(bind(child));
  }

  bool resolve(const std::string& name, Code& c) {
    const auto found = [&c](Op op, int i) {
      if (i < 0) return false;
      c.op = op;
      c.a = i;
      return true;
    };
    const auto local = places_.find(name);
    if (local != places_.end()) return found(Op::local, local->second);
    const auto member = members_.find(name);
    if (member != members_.end()) return found(member->second.op, member->second.place);
    return found(Op::global, globals_.find(name));
  }

  void bind_name(const Expr& e, Code& c) {
    if (resolve(e.text, c)) return;
    for (int d = 0; d <= static_cast<int>(DType::boolean); ++d) {
      const auto dtype = static_cast<DType>(d);
      if (e.text == dtype_name(dtype)) {
        c.value = Value::of_dtype(dtype);
        return;
      }
    }
    if (e.text == "index") {  // of a repeated child, while it is made
      c.op = Op::global;
      c.a = -1;
      return;
    }
    std::vector<std::string> known = globals_.names;
    if (locals_) known.insert(known.end(), locals_->begin(), locals_->end());
    const std::string near = closest(e.text, known);
    std::vector<std::string> notes;
    if (!near.empty()) notes.push_back("did you mean '" + near + "'?");
    faults_.error(e.where, "unknown name '" + e.text + "'", notes);
  }

  /// Puts each argument in its place of the signature; reports doubles, strangers and gaps.
  void place_arguments(const Expr& e, std::size_t first, const std::vector<std::string>& signature,
                       int required, Code& c) {
    std::vector<bool> given(signature.size(), false);
    c.children.reserve(e.children.size() - first);
    c.places.reserve(e.children.size() - first);
    int position = 0;
    for (std::size_t i = first; i < e.children.size(); ++i) {
      int place = e.names[i].empty() ? position++ : index_of(signature, e.names[i]);
      if (place < 0 || place >= static_cast<int>(signature.size())) {
        const bool named = !e.names[i].empty();
        faults_.error(e.where,
                      named ? "'" + e.text + "' has no argument '" + e.names[i] + "'"
                            : "too many arguments of '" + e.text + "'",
                      named ? suggest(e.names[i], signature) : std::vector<std::string>{});
        place = 0;
      } else if (given[static_cast<std::size_t>(place)]) {
        faults_.error(e.where, "argument '" + signature[static_cast<std::size_t>(place)] +
                                   "' of '" + e.text + "' is given twice");
      } else {
        given[static_cast<std::size_t>(place)] = true;
      }
      c.children.push_back(bind(e.children[i]));
      c.places.push_back(place);
    }
    for (int i = 0; i < required; ++i) {
      if (!given[static_cast<std::size_t>(i)]) {
        faults_.error(e.where, "argument '" + signature[static_cast<std::size_t>(i)] + "' of '" +
                                   e.text + "' is missing");
      }
    }
  }

  void bind_call(const Expr& e, Code& c) {
    Code callee;
    const bool value = e.text.empty();
    // A number of the model is no module: `dropout(x, dropout)` calls the operator.
    if (value || (!making_ && resolve(e.text, callee) && callee.op != Op::global)) {
      c.op = Op::call_value;
      c.children.push_back(value ? bind(e.children[0]) : std::move(callee));
      for (std::size_t i = value ? 1 : 0; i < e.children.size(); ++i) {
        c.children.push_back(bind(e.children[i]));
        c.keywords.push_back(e.names[i]);
      }
      return;
    }
    if (library_) {
      if (const CompiledClass* type = library_->find(e.text)) {
        c.op = Op::call_class;
        c.callee = type;
        c.unit = e.text == "activate";
        const auto& arguments = making_ ? type->spec->takes : type->spec->inputs;
        const Signature& signature = signature_of(arguments);
        place_arguments(e, 0, signature.names, signature.required, c);
        return;
      }
    }
    for (const BuiltinRow& row : builtin_table()) {
      if (e.text != row.name) continue;
      c.op = Op::call_builtin;
      c.builtin = row.run;
      c.unit = is_unit(e.text);
      c.a = static_cast<int>(row.parameters.size());
      place_arguments(e, 0, {row.parameters.begin(), row.parameters.end()}, row.required, c);
      return;
    }
    std::vector<std::string> known;
    for (const BuiltinRow& row : builtin_table()) known.emplace_back(row.name);
    if (library_) {
      for (const auto& cls : library_->family().classes) known.push_back(cls.name);
    }
    const std::string near = closest(e.text, known);
    faults_.error(e.where, "unknown function, module or operator '" + e.text + "'",
                  near.empty() ? std::vector<std::string>{}
                               : std::vector<std::string>{"did you mean '" + near + "'?"});
  }

  const Globals& globals_;
  Library* library_;
  std::deque<std::string>& texts_;
  Diagnostics& faults_;
  struct Member {
    Op op;
    int place;
  };
  const CompiledClass* type_ = nullptr;
  std::unordered_map<std::string_view, Member> members_;  // of the class
  bool making_ = false;
  const std::vector<std::string>* locals_ = nullptr;
  Places places_;  // of the locals
  std::unordered_map<const std::vector<spec::ArgumentSpec>*, Signature> signatures_;
};

namespace {

void compile(CompiledClass& type, Binder& binder) {
  const spec::ClassSpec& s = *type.spec;
  binder.use_class(type);
  binder.use_locals(nullptr);
  for (const auto& take : s.takes) {
    type.take_defaults.push_back(take.fallback ? binder.bind(*take.fallback) : Code{});
  }
  for (const auto& constant : s.constants) type.constants.push_back(binder.bind(constant.value));
  for (const auto& t : s.parameters) type.parameter_shapes.push_back(binder.bind(t.shape));
  for (const auto& t : s.buffers) type.buffer_shapes.push_back(binder.bind(t.shape));
  binder.making_children(true);
  for (const auto& child : s.children) type.child_makers.push_back(binder.bind(child.make));
  if (s.wiring) {
    type.child_makers.reserve(s.children.size() + s.wiring->makes.size());
    for (const auto& make : s.wiring->makes) type.child_makers.push_back(binder.bind(make));
  }
  binder.making_children(false);
  for (const auto& input : s.inputs) {
    type.locals.push_back(input.name);
    type.input_required.push_back(!input.fallback);
    type.input_defaults.push_back(input.fallback ? binder.bind(*input.fallback) : Code{});
  }
  collect_targets(s.forward, type.locals);
  type.slots = static_cast<int>(type.locals.size() + (s.wiring ? s.wiring->parts.size() : 0));
  binder.use_locals(&type.locals);
  type.forward = binder.bind_all(s.forward);
  collect_targets(s.construct, type.construct_locals);
  binder.use_locals(&type.construct_locals);
  type.construct = binder.bind_all(s.construct);
  binder.use_locals(nullptr);
}

}  // namespace

Library::Library(const spec::FamilySpec& family, const Globals& globals) : family_(family) {
  Diagnostics faults;
  for (const spec::ClassSpec& s : family.classes) {
    auto type = std::make_unique<CompiledClass>();
    type->spec = &s;
    classes_[s.name] = std::move(type);
  }
  Binder binder(globals, this, texts_, faults);
  for (auto& [name, type] : classes_) compile(*type, binder);
  faults.throw_if_any();
}

const CompiledClass* Library::find(const std::string& name) const {
  const auto it = classes_.find(name);
  return it == classes_.end() ? nullptr : it->second.get();
}

std::shared_ptr<const Library> bind_family(std::shared_ptr<const spec::FamilySpec> family,
                                           const Globals& globals) {
  struct Kept {
    std::shared_ptr<const spec::FamilySpec> family;  // so that its address stays its own
    std::shared_ptr<const Library> library;
  };
  static std::mutex mutex;
  // Never taken down: a process ends sooner so.
  static auto& bound =
      *new std::map<std::pair<const spec::FamilySpec*, std::vector<std::string>>, Kept>;
  const std::lock_guard<std::mutex> lock(mutex);
  Kept& kept = bound[{family.get(), globals.names}];
  if (!kept.library) {
    kept.library = std::make_shared<const Library>(*family, globals);
    kept.family = std::move(family);
  }
  return kept.library;
}

Code bind_expression(const spec::Expr& expression, const Globals& globals, Library* library,
                     std::deque<std::string>& texts, Diagnostics& faults) {
  Binder binder(globals, library, texts, faults);
  return binder.bind(expression);
}

}  // namespace shardfit::model
