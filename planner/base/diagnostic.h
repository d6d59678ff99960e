#pragma once
// Faults in what a person gave us: where, what was found, what was expected, what to do.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace shardfit {

/// A text as it was read: a file, or the command line. Locations point into it, so it lives as long
/// as any value that came from it.
struct Source {
  std::string name;  // as the person wrote the path
  std::string text;
};
using SourcePtr = std::shared_ptr<const Source>;

/// A stretch of a source. Cheap to keep beside every value: line and column are counted only when
/// somebody asks for them.
struct Location {
  SourcePtr source;
  std::size_t offset = 0;  // bytes from the start of the text
  std::size_t length = 0;  // bytes; 0 or 1 mark a single place

  bool known() const { return source != nullptr; }
  /// The source's name, empty where unknown.
  std::string_view file() const { return source ? std::string_view(source->name) : ""; }
  /// From 1; columns count characters (UTF-8 code points). 0 where unknown.
  int line() const;
  int column() const;
  /// "file:line:column", or "" where unknown.
  std::string text() const;
};

/// A location that names a whole file, for faults with no place in its text.
Location whole_file(std::string name);

/// One fault.
struct Diagnostic {
  Location where;
  std::string message;             // "unknown key 'hiden' in operator 'attention'"
  std::vector<std::string> notes;  // "expected one of: ...", "did you mean 'hidden'?"
};

/// The fault as text, ending in a newline: "file:line:column: error: message", the source line with
/// a caret and tildes under the stretch meant, and the notes indented by two.
std::string render(const Diagnostic& diagnostic);

/// Bad input; the program ends with exit code 2. Thrown by spec/ and cli/ only.
class InputError : public std::runtime_error {
 public:
  /// `left_out` faults were found beyond those given.
  explicit InputError(std::vector<Diagnostic> diagnostics, std::size_t left_out = 0);
  InputError(Location where, std::string message, std::vector<std::string> notes = {});
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

/// Gathers the faults of one run so that the person sees all of them at once.
class Diagnostics {
 public:
  /// Most faults shown; further ones are counted.
  static constexpr std::size_t most_shown = 20;

  void error(Location where, std::string message, std::vector<std::string> notes = {});
  void add(const Diagnostics& others);
  const std::vector<Diagnostic>& found() const { return found_; }
  bool empty() const { return found_.empty(); }
  std::size_t size() const { return found_.size(); }
  /// Throws InputError with the faults in file order (sources in order of first fault), repeats of
  /// one fault left out; nothing if there are none.
  void throw_if_any() const;

 private:
  std::vector<Diagnostic> found_;
};

/// Edits (insert, delete, replace, swap of neighbours) between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, ignoring case and the difference of '-', '_' and ' '; empty
/// where none is near enough to be meant.
std::string closest(std::string_view word, std::span<const std::string> candidates);

/// Notes for a word that is not one of `candidates`: "expected one of: ..." and, where one is near,
/// "did you mean '...'?".
std::vector<std::string> suggest(std::string_view word, std::span<const std::string> candidates);

/// "a, b, c".
std::string join(std::span<const std::string> words, std::string_view separator = ", ");

/// `text` for a message: in single quotes, control characters shown as escapes, cut when long.
std::string quoted(std::string_view text);

}  // namespace shardfit
