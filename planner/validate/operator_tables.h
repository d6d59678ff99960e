#pragma once
// Tables of measured operators (gemm/, attention_forward/, collectives/DEVICE.csv) against what the
// device's profile predicts.

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "run/machine.h"
#include "spec/cluster_spec.h"

namespace shardfit::validate {

enum class OperatorKind : std::uint8_t { product, attention, exchange };

/// One line of a table.
struct OperatorRow {
  std::string name;    // dtype, kernel or collective
  double number[5]{};  // the shape, in the columns' order
  double seconds = 0;  // measured
  std::size_t line = 0;
};

struct OperatorTable {
  OperatorKind kind = OperatorKind::product;
  std::string path, group;  // "gemm/h100_sxm"
  std::string device;       // "h100_sxm": a name or alias of a device
  std::vector<OperatorRow> rows;
};

/// Whether the file's first line is that of such a table.
bool is_operator_table(const std::string& path);
/// Throws InputError with the line of the first fault.
OperatorTable read_operator_table(const std::string& path);

/// Predicts the rows of tables of one device.
class OperatorPrediction {
 public:
  explicit OperatorPrediction(const spec::ClusterSpec& cluster);
  /// Seconds, or a reason in `skipped`.
  double seconds(OperatorKind kind, const OperatorRow& row, std::string& skipped) const;

 private:
  run::Machine machine_;
};

/// Relative errors of one table, by name and size.
struct OperatorErrors {
  struct Set {
    std::string name;
    std::vector<float> errors;
  };
  std::string group;
  std::vector<Set> sets;
  std::size_t skipped = 0;
};

/// Predicts a table. With `json`, one object a row goes to it at once.
OperatorErrors compare_operators(const OperatorTable& table, spec::DeviceCatalog& devices,
                                 std::ostream* json);
/// Medians, 90 % and signed medians, one line a set.
void print_operators(const std::vector<OperatorErrors>& errors, std::ostream& out);

}  // namespace shardfit::validate
