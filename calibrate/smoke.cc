#include "calibrate/smoke.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/format.h"
#include "calibrate/json.h"
#include "calibrate/report.h"

namespace shardfit::calibrate {
namespace {

struct Row {
  const char* kind;
  SmokeTest test;
  Op op = Op::copy;
};
/// Kinds of the planner whose kernel one of ours is like.
constexpr Row rows[] = {
    {"softmax", SmokeTest::softmax},
    {"log_softmax", SmokeTest::cross_entropy},
    {"nll_loss", SmokeTest::cross_entropy},
    {"rms_norm", SmokeTest::rms_norm},
    {"layer_norm", SmokeTest::layer_norm},
    {"batch_norm", SmokeTest::layer_norm},  // a channel's values as a row
    {"sum", SmokeTest::row_sum},
    {"mean", SmokeTest::row_sum},
    {"embedding", SmokeTest::gather},
    {"index", SmokeTest::gather},
    {"fused_adamw", SmokeTest::adamw},
    {"adamw", SmokeTest::adamw},
    {"to", SmokeTest::elementwise, Op::copy},
    {"clone", SmokeTest::elementwise, Op::copy},
    {"cat", SmokeTest::elementwise, Op::copy},
    {"slice", SmokeTest::elementwise, Op::copy},
    {"stack", SmokeTest::elementwise, Op::copy},
    {"accumulate_grad", SmokeTest::elementwise, Op::copy},
    {"add", SmokeTest::elementwise, Op::add},
    {"accumulate_gradients", SmokeTest::elementwise, Op::add},
    {"foreach_add", SmokeTest::elementwise, Op::add},
    {"sub", SmokeTest::elementwise, Op::sub},
    {"mul", SmokeTest::elementwise, Op::mul},
    {"foreach_mul", SmokeTest::elementwise, Op::mul},
    {"div", SmokeTest::elementwise, Op::div},
    {"foreach_div", SmokeTest::elementwise, Op::div},
    {"foreach_lerp", SmokeTest::elementwise, Op::lerp},
    {"foreach_addcmul", SmokeTest::elementwise, Op::addcmul},
    {"foreach_addcdiv", SmokeTest::elementwise, Op::addcdiv},
    {"neg", SmokeTest::elementwise, Op::neg},
    {"sin", SmokeTest::elementwise, Op::sin},
    {"cos", SmokeTest::elementwise, Op::cos},
    {"tanh", SmokeTest::elementwise, Op::tanh},
    {"sqrt", SmokeTest::elementwise, Op::sqrt},
    {"foreach_sqrt", SmokeTest::elementwise, Op::sqrt},
    {"rsqrt", SmokeTest::elementwise, Op::rsqrt},
    {"reciprocal", SmokeTest::elementwise, Op::reciprocal},
    {"pow", SmokeTest::elementwise, Op::square},
    {"silu", SmokeTest::elementwise, Op::silu},
    {"gelu", SmokeTest::elementwise, Op::gelu},
    {"relu", SmokeTest::elementwise, Op::relu},
    {"exp", SmokeTest::elementwise, Op::exp},
};

/// The operator's own proportions, cut down to what the host multiplies in a moment.
ProductShape small_shape(const Compute& c, SmokeTest test) {
  ProductShape shape{rate_of(c.dtype), 33, 96, 1, 1};
  const auto cut = [](std::int64_t size, std::int64_t most) {
    return std::clamp<std::int64_t>(size, 1, most);
  };
  if (test == SmokeTest::product) {
    shape.m = cut(c.m, 48);
    shape.n = cut(c.n, 40);
    shape.k = cut(c.k, 192);
    // Tensor cores want rows of 16 bytes.
    for (std::int64_t* size : {&shape.n, &shape.k}) *size = (*size + 7) / 8 * 8;
    shape.groups = cut(c.groups, 3);
  } else if (test == SmokeTest::attention) {
    shape.m = shape.n = cut(c.m, 70);
    shape.k = cut((c.k + 31) / 32 * 32, 256);
    shape.groups = cut(c.groups, 2);
  }
  return shape;
}

std::string result_words(const SmokeResult& r) {
  if (!r.failure.empty()) return "FAILED: " + r.failure;
  if (r.c.test == SmokeTest::none) return "not tested: no kernel of ours is like it";
  if (!r.compared) return "launched, not compared";
  return std::string(r.right() ? "right" : "WRONG") + ", largest error " + format_percent(r.worst) +
         " of what is allowed";
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text + " ";
}

}  // namespace

std::string test_name(const SmokeCase& c) {
  constexpr const char* names[] = {"",           "product", "attention",     "softmax", "rms norm",
                                   "layer norm", "row sum", "cross entropy", "gather",  "adamw"};
  if (c.test == SmokeTest::elementwise) return op_name(c.op);
  return names[static_cast<int>(c.test)];
}

SmokeCase smoke_case_of(const Compute& compute) {
  SmokeCase c;
  c.kind = compute.kind;
  c.dtype = compute.dtype;
  for (const Row& row : rows) {
    if (c.kind != row.kind) continue;
    c.test = row.test;
    c.op = row.op;
  }
  const bool floats = compute.dtype == DType::f32 || is_half(compute.dtype);
  if (floats && work_of(compute) == Work::product) c.test = SmokeTest::product;
  if (floats && work_of(compute) == Work::attention) c.test = SmokeTest::attention;
  // A loss or a gather is typed by its indices; other integers no kernel of ours takes.
  if (!floats && c.test != SmokeTest::cross_entropy && c.test != SmokeTest::gather) {
    c.test = SmokeTest::none;
  }
  c.shape = small_shape(compute, c.test);
  return c;
}

std::vector<SmokeCase> smoke_cases(const PlannedOption& option) {
  std::vector<SmokeCase> cases;
  std::set<std::pair<std::string, DType>> seen;
  for (const PlannedGpu& gpu : option.gpus) {
    for (const Compute& c : gpu.program.program.computes) {
      if (seen.emplace(c.kind, c.dtype).second) cases.push_back(smoke_case_of(c));
    }
  }
  return cases;
}

double worst_error(const Reference& reference, const std::vector<double>& got) {
  if (got.size() != reference.values.size()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(got[i] - reference.values[i]) / reference.tolerances[i];
    if (!(error <= worst)) worst = std::isnan(error) ? HUGE_VAL : error;
  }
  return worst;
}

std::string smoke_text(const SmokeReport& report) {
  std::string text;
  if (report.machine.stand_in) text += std::string(stand_in_words) + "\n";
  text += "option " + report.option + "\n";
  int tested = 0, wrong = 0;
  for (const SmokeResult& r : report.results) {
    text += "  " + padded(r.c.kind, 22) + padded(dtype_name(r.c.dtype), 5) +
            padded(test_name(r.c), 14) + result_words(r) + "\n";
    tested += r.c.test != SmokeTest::none;
    wrong += !r.right();
  }
  text += std::to_string(tested) + " of " + std::to_string(report.results.size()) +
          " operator kinds " + (report.machine.stand_in ? "launched, none compared" : "tested") +
          ", " + std::to_string(wrong) + (report.machine.stand_in ? " failed\n" : " wrong\n");
  return text;
}

std::string smoke_json(const SmokeReport& report) {
  Json json;
  json.object([&] {
    json.text("version", "1");
    json.boolean("stand_in", report.machine.stand_in);
    json.text("option", report.option);
    json.array("operators", report.results, [&](const SmokeResult& r) {
      json.object([&] {
        json.text("operator", r.c.kind);
        json.text("dtype", dtype_name(r.c.dtype));
        json.text("test", test_name(r.c));
        json.boolean("compared", r.compared && r.c.test != SmokeTest::none);
        json.boolean("right", r.right());
        json.real("worst_error_of_tolerance", std::isfinite(r.worst) ? r.worst : -1);
        json.text("failure", r.failure);
      });
    });
  });
  return json.result();
}

}  // namespace shardfit::calibrate
