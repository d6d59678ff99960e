#pragma once
// The strict reader: files become Nodes, Nodes become checked values, and every fault is a
// Diagnostic with its place. Nothing is guessed, wrapped or dropped in silence.
//
//   Diagnostics faults;
//   const Node root = read_file("tiny.yaml", faults);
//   MapView map(root, "model", faults);
//   const auto hidden = map.require_integer("hidden", {1, 1 << 20});
//   const auto bias = map.boolean("bias");        // optional: absent is no fault
//   map.finish();                                 // unknown keys
//   faults.throw_if_any();                        // all of them at once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostic.h"
#include "base/units.h"
#include "spec/node.h"

namespace shardfit::spec {

/// Largest file read: no specification comes near it.
inline constexpr Bytes largest_file{32LL << 20};

/// The text of a file. Throws InputError where it is missing, a directory, unreadable, empty,
/// larger than `most`, or no UTF-8 text (a NUL byte counts as binary). A byte order mark is
/// dropped.
SourcePtr read_source(const std::string& path, Bytes most = largest_file);

/// A YAML or JSON text as a tree: JSON where the name ends in .json, YAML where it ends in .yaml or
/// .yml, otherwise by the first character ('{' and '[' begin JSON). Throws InputError where the
/// text is neither; other faults go to `faults`.
Node read_text(const SourcePtr& source, Diagnostics& faults);
Node read_file(const std::string& path, Diagnostics& faults);
/// The same for a file of the data directory, which many jobs of one process ask for: read once and
/// kept while the file stays as it is (size and time of its last change).
std::shared_ptr<const Node> read_data(const std::string& path, Diagnostics& faults);

/// A checked value and its place.
template <class T>
struct Located {
  T value{};
  Location where;
};

/// Whole numbers accepted, both ends included.
struct IntegerRange {
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};

/// Real numbers accepted, both ends included; never NaN or infinity.
struct RealRange {
  double least = 0;
  double most = std::numeric_limits<double>::max();
};

// Views of one value. `what` names it in messages ("'hidden' of model"). Each reports a fault and
// gives nothing where the value is of another type or out of range.
std::optional<std::int64_t> as_integer(const Node& node, std::string_view what, IntegerRange range,
                                       Diagnostics& faults);
/// A whole number is a real one too.
std::optional<double> as_real(const Node& node, std::string_view what, RealRange range,
                              Diagnostics& faults);
std::optional<bool> as_boolean(const Node& node, std::string_view what, Diagnostics& faults);
/// Non-empty text. A number or true/false without quotes is refused unless it is a command line
/// word.
std::optional<std::string> as_string(const Node& node, std::string_view what, Diagnostics& faults);
/// A string that is one of `names`; its index.
std::optional<std::size_t> as_choice(const Node& node, std::string_view what,
                                     std::span<const std::string> names, Diagnostics& faults);
/// Quantities with their unit: "80 GiB", "900 GB/s", "989 TFLOP/s", "20 us".
std::optional<Bytes> as_bytes(const Node& node, std::string_view what, Diagnostics& faults);
std::optional<BytesPerSecond> as_bytes_per_second(const Node& node, std::string_view what,
                                                  Diagnostics& faults);
std::optional<FlopsPerSecond> as_flops_per_second(const Node& node, std::string_view what,
                                                  Diagnostics& faults);
std::optional<Seconds> as_seconds(const Node& node, std::string_view what, Diagnostics& faults);
/// The node itself where it is of that kind, else null and a fault.
const Node* as_list(const Node& node, std::string_view what, Diagnostics& faults);
const Node* as_map(const Node& node, std::string_view what, Diagnostics& faults);

enum class UnknownKeys {
  refused,  // our own formats
  kept      // foreign formats: unknown keys pass, and a key without a value counts as absent
};

/// A map whose keys are asked for one by one. Keys never asked for are unknown; finish() reports
/// them. A node of another kind is reported once and then reads as an empty map that lacks nothing.
class MapView {
 public:
  /// `what` names the map in messages: "operator 'attention'". Node and faults must outlive the
  /// view.
  MapView(const Node& node, std::string what, Diagnostics& faults,
          UnknownKeys unknown = UnknownKeys::refused);

  const Node& node() const { return *node_; }
  const std::string& what() const { return what_; }
  const Location& where() const { return node_->where; }
  Diagnostics& faults() { return *faults_; }

  /// The value of a key, or null where it is absent. The key counts as known from now on.
  const Node* find(std::string_view key);
  /// As find, but its absence is a fault.
  const Node* require(std::string_view key);

  // An optional key: nothing where it is absent or faulty.
  std::optional<Located<std::int64_t>> integer(std::string_view key, IntegerRange range = {});
  std::optional<Located<double>> real(std::string_view key, RealRange range = {});
  std::optional<Located<bool>> boolean(std::string_view key);
  std::optional<Located<std::string>> string(std::string_view key);
  std::optional<Located<std::size_t>> choice(std::string_view key,
                                             std::span<const std::string> names);
  std::optional<Located<Bytes>> bytes(std::string_view key);
  std::optional<Located<BytesPerSecond>> bytes_per_second(std::string_view key);
  std::optional<Located<FlopsPerSecond>> flops_per_second(std::string_view key);
  std::optional<Located<Seconds>> seconds(std::string_view key);
  const Node* list(std::string_view key);
  const Node* map(std::string_view key);

  // A required key: after a fault the least value of the range, false, or empty, so that reading
  // can go on and find further faults.
  Located<std::int64_t> require_integer(std::string_view key, IntegerRange range = {});
  Located<double> require_real(std::string_view key, RealRange range = {});
  Located<bool> require_boolean(std::string_view key);
  Located<std::string> require_string(std::string_view key);
  Located<std::size_t> require_choice(std::string_view key, std::span<const std::string> names);
  Located<Bytes> require_bytes(std::string_view key);
  Located<Seconds> require_seconds(std::string_view key);
  const Node* require_list(std::string_view key);
  const Node* require_map(std::string_view key);

  /// Reports the keys that nothing asked for, with the known ones as suggestions.
  void finish();

 private:
  std::string name_of(std::string_view key) const;
  template <class Convert>
  auto optional_value(std::string_view key, Convert convert);
  template <class Convert, class T>
  Located<T> required_value(std::string_view key, Convert convert, T fallback);

  const Node* node_;
  std::string what_;
  Diagnostics* faults_;
  UnknownKeys unknown_;
  std::vector<std::string> known_;  // in the order asked for
};

}  // namespace shardfit::spec
