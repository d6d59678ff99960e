#include <algorithm>
#include <ostream>

#include "cli/graph_command.h"
#include "graph/operator_kinds.h"
#include "model/code.h"
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
