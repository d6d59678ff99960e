#include <algorithm>
#include <ostream>

#include "cli/graph_command.h"
#include "graph/operator_kinds.h"
#include "model/code.h"
#include "spec/graph_spec.h"
#include "spec/model_spec.h"

namespace shardfit::cli {
namespace {

constexpr std::size_t screen_width = 80;

std::string signature(const model::BuiltinRow& row) {
  std::string text = std::string(row.name) + "(";
  for (std::size_t i = 0; i < row.parameters.size(); ++i) {
    if (i > 0) text += ", ";
    const bool optional = static_cast<int>(i) >= row.required;
    text += optional ? "[" + std::string(row.parameters[i]) + "]" : row.parameters[i];
  }
  return text + ")";
}

/// `text` in lines that fit behind `indent`.
void print_wrapped(const std::string& first, std::size_t indent, const std::string& text,
                   std::ostream& out) {
  out << first << std::string(first.size() < indent ? indent - first.size() : 1, ' ');
  std::size_t column = std::max(first.size() + 1, indent);
  std::size_t at = 0;
  bool fresh = true;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (!fresh && column + 1 + end - at > screen_width) {
      out << "\n" << std::string(indent, ' ');
      column = indent;
      fresh = true;
    }
    if (!fresh) {
      out << ' ';
      ++column;
    }
    out << text.substr(at, end - at);
    column += end - at;
    fresh = false;
    at = end + 1;
  }
  out << "\n";
}

/// How an operator of a kind is written: its inputs, its fields with their defaults.
std::string usage(const spec::ClassSpec& kind) {
  std::string inputs;
  for (const spec::ArgumentSpec& input : kind.inputs) {
    const std::string name = spec::joins(kind) ? "two or more" : input.name;
    inputs += (inputs.empty() ? "" : ", ") + (input.fallback ? "[" + name + "]" : name);
  }
  return inputs;
}

std::string default_text(const spec::Expr& e) {
  switch (e.kind) {
    case spec::ExprKind::none:
      return "none";
    case spec::ExprKind::boolean:
      return e.integer != 0 ? "true" : "false";
    case spec::ExprKind::integer:
      return std::to_string(e.integer);
    case spec::ExprKind::unary:
      return "-" + default_text(e.children.front());
    case spec::ExprKind::real: {
      std::string text = std::to_string(e.real);
      while (text.ends_with("0") && !text.ends_with(".0")) text.pop_back();
      return text;
    }
    default:
      return e.text;
  }
}

std::string fields(const spec::ClassSpec& kind) {
  std::string text;
  for (const spec::ArgumentSpec& take : kind.takes) {
    if (spec::is_inferred(take.name)) continue;
    text += (text.empty() ? "" : ", ") + take.name;
    if (take.fallback) text += " = " + default_text(*take.fallback);
  }
  return text;
}

}  // namespace

void write_functions(std::ostream& out) {
  for (const model::BuiltinRow& row : model::builtin_table()) out << signature(row) << "\n";
}

void print_kinds(std::ostream& out) {
  constexpr std::size_t column = 21;
  out << "Operator kinds: what each is, what it saves for backward\n\n";
  for (const graph::OperatorKind& kind : graph::operator_kinds()) {
    print_wrapped(kind.name, column, std::string(kind.summary) + "; saves " + kind.saved, out);
  }
  out << "\nKinds of a graph's operators (docs/graphs.md): what each reads, its fields\n\n";
  for (const spec::ClassSpec& kind : spec::read_graph_kinds().classes) {
    const std::string name = spec::kind_name(kind);
    if (name.empty()) continue;
    const std::string own = fields(kind);
    print_wrapped(name, column + 2,
                  "from " + usage(kind) + (own.empty() ? "" : "; " + own) + "; " + kind.summary +
                      "; saves " + kind.saves,
                  out);
  }
  out << "\nFunctions of the model language (docs/model_language.md); [optional]\n\n";
  write_functions(out);
  out << "\nModules and functions of the library, by file\n";
  for (const char* folder : {"library", "implementations"}) {
    for (const std::string& file : spec::data_files(folder)) {
      out << "\n" << file.substr(file.rfind('/') + 1) << "\n";
      Diagnostics faults;
      const spec::Node root = spec::read_file(file, faults);
      faults.throw_if_any();
      std::string names;
      if (const spec::Node* modules = root.child("modules")) {
        for (const spec::Node& module : modules->children) {
          names += (names.empty() ? "" : ", ") + module.key;
        }
      }
      print_wrapped(" ", 2, names, out);
    }
  }
}

void write_graph_kinds(std::ostream& out) {
  out << "| kind | from | fields | is | saves | source |\n| --- | --- | --- | --- | --- | --- |\n";
  for (const spec::ClassSpec& kind : spec::read_graph_kinds().classes) {
    const std::string name = spec::kind_name(kind);
    if (name.empty()) continue;
    out << "| " << name << " | " << usage(kind) << " | " << fields(kind) << " | " << kind.summary
        << " | " << kind.saves << " | `" << kind.source << "` |\n";
  }
}

void write_operator_page(std::ostream& out) {
  out << "# Operators\n\n"
         "The operator kinds of the symbolic engine (`planner/tensor`), what autograd keeps for "
         "each\n"
         "until its backward has run, and the file of pytorch v2.13.0 below `aten/src/ATen/native` "
         "it\n"
         "follows. A storage that several operators keep counts once; parameters are there "
         "anyway.\n"
         "The table is `planner/graph/operator_kinds.cc`; a test holds the operators to it and "
         "this\n"
         "page to the table.\n\n"
         "| kind | is | saves | source |\n| --- | --- | --- | --- |\n";
  for (const graph::OperatorKind& kind : graph::operator_kinds()) {
    out << "| " << kind.name << " | " << kind.summary << " | " << kind.saved << " | `"
        << kind.source << "` |\n";
  }
}

}  // namespace shardfit::cli
