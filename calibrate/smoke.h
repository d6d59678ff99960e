#pragma once
// Every distinct operator of a plan once, in its dtype, on small sizes, against a reference in
// double precision on the host.

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/plan_file.h"
#include "calibrate/reading.h"
#include "calibrate/small/shape.h"

namespace shardfit::calibrate {

/// What does the operator on the device.
enum class SmokeTest {
  none,       // nothing: SmokeCase::why
  product,    // cuBLAS
  attention,  // kernels that are timed by `run`, too
  adamw,
  rows,  // of them, those that take rows: SmokeCase::small says which
  small  // a kernel that is only right (small/operators.h)
};
/// One operator kind of the plan in one dtype and direction.
struct SmokeCase {
  std::string kind;
  DType dtype = DType::f32;
  bool backward = false;
  SmokeTest test = SmokeTest::none;
  std::string why;     // there is no test
  ProductShape shape;  // of products and attention: m rows or tokens, n columns, k inner or width
  SmallShape small;    // of the others
};

/// In order of first use over all ranks.
std::vector<SmokeCase> smoke_cases(const PlannedOption& option);
SmokeCase smoke_case_of(const Compute& compute);
/// "product", "silu", "gradient of softmax"; "" for none.
std::string test_name(const SmokeCase& c);
/// "cuBLAS", "own kernel"; "" for none.
std::string tested_by(const SmokeCase& c);

/// What the operator should give, and how far from it a right kernel can be.
struct Reference {
  std::vector<double> values, tolerances;
};
Reference reference_of(const SmokeCase& c);
/// Of SmokeTest::rows and small, but for dropout.
Reference small_reference(const SmokeCase& c);
/// Dropout is random: each number is dropped or scaled as the mask behind it says, and as many are
/// kept as should be, within five deviations. The error over what is allowed, as worst_error().
double dropout_error(const SmokeCase& c, const std::vector<double>& got);

/// Number `index` of input 0 to 3 as the dtype holds it: value_at() with seed input + 1, its
/// sign for bool, whole numbers up to small_reach() for other integers.
double smoke_input(const SmokeCase& c, int input, std::int64_t index);
/// 1000, or 1 where integers make numbers that are none.
std::int64_t small_reach(const SmokeCase& c);
/// The dtype of what an operator makes.
DType small_result(Small what, DType dtype);

/// Bytes that inputs and result take of the device.
std::int64_t smoke_bytes(const SmokeCase& c);

/// A number as the dtype (bf16, fp16, fp32) holds it, rounded to nearest even.
double rounded_to(DType dtype, double value);
/// One unit in the last place of 1; 0 for integers.
double unit_of(DType dtype);

struct SmokeResult {
  SmokeCase c;
  double worst = 0;      // largest error, of its tolerance
  bool compared = true;  // false on a runtime that runs no kernels
  std::string failure;   // the call that failed; "" where none did
  bool right() const { return failure.empty() && worst <= 1; }
};
/// The largest error over its tolerance; infinity for a number that is none. More than 1 is wrong.
double worst_error(const Reference& reference, const std::vector<double>& got);

struct SmokeReport {
  Machine machine;
  std::string option;
  std::string failure;  // what kept it from beginning; "" where nothing did
  std::vector<SmokeResult> results;
  bool right() const;
};
std::string smoke_text(const SmokeReport& report);
std::string smoke_json(const SmokeReport& report);

SmokeReport run_smoke(const Machine& machine, const PlannedOption& option);

}  // namespace shardfit::calibrate
