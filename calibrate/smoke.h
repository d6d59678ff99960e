#pragma once
// Every distinct operator of a plan once, in its dtype, on small sizes, against a reference in
// double precision on the host.

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/operators.h"
#include "calibrate/plan_file.h"
#include "calibrate/reading.h"

namespace shardfit::calibrate {

enum class SmokeTest {
  none,  // no kernel of ours is like it
  product,
  attention,
  softmax,
  rms_norm,
  layer_norm,
  row_sum,
  cross_entropy,
  gather,
  adamw,
  elementwise  // of SmokeCase::op
};
/// One operator kind of the plan in one dtype.
struct SmokeCase {
  std::string kind;
  DType dtype = DType::f32;
  SmokeTest test = SmokeTest::none;
  Op op = Op::copy;
  ProductShape shape;  // small: m rows, n columns, k inner or width, groups
};

/// In order of first use over all ranks.
std::vector<SmokeCase> smoke_cases(const PlannedOption& option);
SmokeCase smoke_case_of(const Compute& compute);
/// "product", "silu"; "" for none.
std::string test_name(const SmokeCase& c);

/// What the operator should give, and how far from it a right kernel can be.
struct Reference {
  std::vector<double> values, tolerances;
};
/// Inputs are value_at(seed, index), seed 1 the first, rounded to the dtype; see
/// smoke_reference.cc.
Reference reference_of(const SmokeCase& c);

/// A number as the dtype (bf16, fp16, fp32) holds it, rounded to nearest even.
double rounded_to(DType dtype, double value);

struct SmokeResult {
  SmokeCase c;
  double worst = 0;      // largest error, of its tolerance
  bool compared = true;  // false on a runtime that runs no kernels
  std::string failure;   // the call that failed; "" where none did
  bool right() const { return failure.empty() && worst <= 1; }
};
/// The largest error over its tolerance; infinity for a number that is none.
double worst_error(const Reference& reference, const std::vector<double>& got);

struct SmokeReport {
  Machine machine;
  std::string option;
  std::vector<SmokeResult> results;
};
std::string smoke_text(const SmokeReport& report);
std::string smoke_json(const SmokeReport& report);

SmokeReport run_smoke(const Machine& machine, const PlannedOption& option);

}  // namespace shardfit::calibrate
