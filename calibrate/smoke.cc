#include "calibrate/smoke.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/format.h"
#include "calibrate/json.h"
#include "calibrate/report.h"

namespace shardfit::calibrate {
namespace {

std::string result_words(const SmokeResult& r) {
  if (!r.failure.empty()) return "FAILED: " + r.failure;
  if (r.c.test == SmokeTest::none) return "not tested: " + r.c.why;
  if (!r.compared) return "launched, not compared";
  return std::string(r.right() ? "right" : "WRONG") + ", largest error " + format_percent(r.worst) +
         " of what is allowed";
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text + " ";
}

}  // namespace

std::vector<SmokeCase> smoke_cases(const PlannedOption& option) {
  std::vector<SmokeCase> cases;
  std::set<std::tuple<std::string, DType, bool>> seen;
  for (const PlannedGpu& gpu : option.gpus) {
    for (const Compute& c : gpu.program.program.computes) {
      if (seen.emplace(c.kind, c.dtype, c.backward).second) cases.push_back(smoke_case_of(c));
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

bool SmokeReport::right() const {
  return failure.empty() && std::all_of(results.begin(), results.end(),
                                        [](const SmokeResult& r) { return r.right(); });
}

std::string smoke_text(const SmokeReport& report) {
  std::string text;
  if (report.machine.stand_in) text += std::string(stand_in_words) + "\n";
  text += "option " + report.option + "\n";
  if (!report.failure.empty()) return text + "FAILED at the start: " + report.failure + "\n";
  int tested = 0, wrong = 0;
  for (const SmokeResult& r : report.results) {
    text += "  " + padded(r.c.kind, 21) + padded(dtype_name(r.c.dtype), 5) +
            padded(r.c.backward ? "backward" : "", 8) + padded(test_name(r.c), 27) +
            padded(tested_by(r.c), 10) + result_words(r) + "\n";
    tested += r.c.test != SmokeTest::none;
    wrong += !r.right();
  }
  text += std::to_string(tested) + " of " + std::to_string(report.results.size()) + " operators " +
          (report.machine.stand_in ? "launched, none compared" : "tested") + ", " +
          std::to_string(wrong) + (report.machine.stand_in ? " failed\n" : " wrong\n");
  return text;
}

std::string smoke_json(const SmokeReport& report) {
  Json json;
  json.object([&] {
    json.text("version", "1");
    json.boolean("stand_in", report.machine.stand_in);
    json.text("option", report.option);
    json.text("failure", report.failure);
    json.array("operators", report.results, [&](const SmokeResult& r) {
      json.object([&] {
        json.text("operator", r.c.kind);
        json.text("dtype", dtype_name(r.c.dtype));
        json.boolean("backward", r.c.backward);
        json.text("test", test_name(r.c));
        json.text("by", tested_by(r.c));
        json.text("not_tested", r.c.why);
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
