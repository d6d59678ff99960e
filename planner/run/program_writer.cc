#include <cctype>
#include <map>
#include <ostream>

#include "base/format.h"
#include "run/program_file.h"

namespace shardfit::run {
namespace {

constexpr char letters[] = {'a', 'f', 'p', 'e', 'r', 'c', 'x', 'v', 'w', 'h', 's'};

/// Kinds by their text, in the order they are met.
class Kinds {
 public:
  explicit Kinds(const Program& program) {
    for (const StorageInfo& storage : program.storages) add(storage.kind);
    for (const Compute& compute : program.computes) add(compute.kind);
  }
  std::size_t of(const char* kind) const { return numbers_.at(kind); }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void add(const char* kind) {
    if (numbers_.emplace(kind, names_.size()).second) names_.push_back(kind);
  }
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> names_;
};

void write_names(const char* word, const std::vector<std::string>& names, std::ostream& out) {
  for (const std::string& name : names) out << word << ' ' << (name.empty() ? "-" : name) << '\n';
}

}  // namespace

std::string program_file_name(const std::string& option, int rank) {
  std::string name;
  for (const char c : option) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
    name += plain ? c : '_';
  }
  return name + "-rank" + std::to_string(rank) + ".program";
}

void write_program(const Program& p, const std::string& option, std::ostream& out) {
  const Kinds kinds(p);
  out << "shardfit-program 1\noption " << option << "\nrank " << p.rank << "\nparameters "
      << p.parameters_total << ' ' << p.parameters_trainable << '\n';
  write_names("stream", p.streams, out);
  for (const auto& group : p.groups) {
    out << "group";
    for (const std::int32_t rank : group) out << ' ' << rank;
    out << '\n';
  }
  write_names("module", p.modules, out);
  write_names("kind", kinds.names(), out);
  for (const StorageInfo& s : p.storages) {
    out << "storage " << s.bytes << ' ' << category_name(s.category) << ' '
        << static_cast<int>(s.stream) << ' ' << kinds.of(s.kind) << ' ' << s.module << ' '
        << s.backward << '\n';
  }
  for (const Compute& c : p.computes) {
    out << "compute " << kinds.of(c.kind) << ' ' << c.module << ' ' << c.backward << ' '
        << dtype_name(c.dtype) << ' ' << format_exact(c.flops) << ' ' << format_exact(c.bytes)
        << ' ' << c.m << ' ' << c.n << ' ' << c.k << ' ' << c.groups << '\n';
  }
  for (const Collective& c : p.collectives) {
    out << "collective " << collective_name(c.kind) << ' ' << dtype_name(c.dtype) << ' ' << c.bytes
        << ' ' << c.group << ' ' << c.peer << ' ' << c.module << ' ' << c.backward << '\n';
  }
  for (const PhaseMark& mark : p.phases) {
    out << "phase " << mark.name << ' ' << mark.step << ' ' << mark.live << '\n';
  }
  out << "events " << p.events << "\nrun\n";
  for (const Instruction& i : p.instructions) {
    out << letters[static_cast<int>(i.action)] << ' ' << i.id << ' ' << static_cast<int>(i.stream)
        << '\n';
  }
  out << "end\n";
}

}  // namespace shardfit::run
