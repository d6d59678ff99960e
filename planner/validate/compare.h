#pragma once
// Measured cases against predictions: one row a reading, and the figures of a set.

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "validate/cases.h"

namespace shardfit::validate {

struct Row {
  std::string id, group, family, counter, phase;
  std::int64_t measured = 0, predicted = 0;
  double measured_seconds = 0, predicted_seconds = 0;  // of step_seconds, in place of those
  double relative_error() const {
    if (measured_seconds > 0) return predicted_seconds / measured_seconds - 1;
    return measured == 0
               ? (predicted == 0 ? 0.0 : 1.0)
               : static_cast<double>(predicted - measured) / static_cast<double>(measured);
  }
};

struct CaseResult {
  std::string id, group, family;
  std::string skipped;
  std::vector<Row> rows;
  bool ends_out_of_memory = false;  // as measured
  bool outcome_right = true;
  std::string predicted_outcome;  // of a case that ends out of memory, or should not
};

/// Predicts every case. Cases of one model are read once. A step's seconds are those of the equal
/// ranks' program on the case's device; they have no row where that device's speed is not sourced.
std::vector<CaseResult> predict(const std::vector<Case>& cases);

/// One JSON object a reading, one a line.
void print_json(const std::vector<CaseResult>& results, std::ostream& out);
/// Tables by counter, group and family; readable at 80 columns.
void print_table(const std::vector<CaseResult>& results, std::ostream& out);

}  // namespace shardfit::validate
