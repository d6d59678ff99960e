// The stopping rule and the fits of calibrate, on made-up series.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "calibrate/fit.h"
#include "calibrate/stopping_rule.h"

using namespace shardfit::calibrate;

TEST_CASE("stopping: equal samples are steady as soon as there are the least") {
  StoppingRule rule({.least = 5, .most = 50, .relative_error = 0.01, .seconds = 1});
  for (int i = 0; i < 4; ++i) {
    rule.add(2.0);
    CHECK_FALSE(rule.done(0));
  }
  rule.add(2.0);
  CHECK(rule.done(0));
  CHECK(rule.why() == std::string("steady"));
  CHECK(rule.summary().median == 2.0);
  CHECK(rule.summary().spread == 0);
}

TEST_CASE("stopping: a noisy series goes on until its median is known to the error asked for") {
  // The error of the median falls with the root of the number of samples.
  std::mt19937 random(1);
  std::normal_distribution<double> noise(1.0, 0.1);
  const auto needed = [&](double error) {
    StoppingRule rule({.least = 7, .most = 100'000, .relative_error = error, .seconds = 1e9});
    do {
      rule.add(std::fabs(noise(random)));
    } while (!rule.done(0));
    CHECK(rule.why() == std::string("steady"));
    CHECK(rule.summary().median == doctest::Approx(1.0).epsilon(4 * error));
    return static_cast<double>(rule.summary().samples);
  };
  // 1.2533 * 0.1 / sqrt(n) = error: 157 samples for 1 %, 1571 for a root of ten less.
  CHECK(needed(0.01) == doctest::Approx(157).epsilon(0.4));
  CHECK(needed(0.01 / std::sqrt(10.0)) == doctest::Approx(1571).epsilon(0.2));
}

TEST_CASE("stopping: throttled samples are counted and do not count") {
  StoppingRule rule({.least = 3, .most = 8, .relative_error = 0.01, .seconds = 1});
  for (int i = 0; i < 3; ++i) rule.add(9.0, true);
  for (int i = 0; i < 2; ++i) rule.add(1.0);
  CHECK_FALSE(rule.done(0.5));
  rule.add(1.0);
  CHECK(rule.done(0.5));
  const Summary summary = rule.summary();
  CHECK(summary.median == 1.0);
  CHECK(summary.samples == 3);
  CHECK(summary.dropped == 3);
}

TEST_CASE("stopping: the most samples and the time end a series that does not settle") {
  StoppingRule most({.least = 3, .most = 6, .relative_error = 1e-6, .seconds = 100});
  for (int i = 1; i <= 6; ++i) most.add(i);
  CHECK(most.done(0));
  CHECK(most.why() == std::string("most"));
  CHECK(most.summary().median == 3.5);
  CHECK(most.summary().spread == doctest::Approx((4.75 - 2.25) / 2 / 3.5));
  StoppingRule time({.least = 3, .most = 6, .relative_error = 1e-6, .seconds = 1});
  CHECK_FALSE(time.done(2));  // nothing was measured
  time.add(1);
  CHECK_FALSE(time.done(0.5));
  CHECK(time.done(1));
  CHECK(time.why() == std::string("time"));
}

TEST_CASE("stopping: what is no time is refused") {
  StoppingRule rule({});
  CHECK_THROWS_AS(rule.add(-1), std::invalid_argument);
  CHECK_THROWS_AS(rule.add(std::nan("")), std::invalid_argument);
}

TEST_CASE("fit: an exact line is found over six decades") {
  std::vector<Point> points;
  for (double bytes = 1e3; bytes < 1e10; bytes *= 8) points.push_back({bytes, 5e-6 + bytes / 3e12});
  const LatencyRate fit = fit_latency_rate(points);
  CHECK(fit.latency == doctest::Approx(5e-6).epsilon(1e-9));
  CHECK(fit.rate == doctest::Approx(3e12).epsilon(1e-9));
  CHECK(fit.worst_residual < 1e-9);
  CHECK(fit.points == static_cast<int>(points.size()));
}

TEST_CASE("fit: noise of some percent moves the numbers by no more, and is told") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> noise(0.97, 1.03);
    std::vector<Point> points;
    for (double bytes = 1e4; bytes < 1e10; bytes *= 4) {
      points.push_back({bytes, (8e-6 + bytes / 4.5e11) * noise(random)});
    }
    const LatencyRate fit = fit_latency_rate(points);
    CHECK(fit.latency == doctest::Approx(8e-6).epsilon(0.03));
    CHECK(fit.rate == doctest::Approx(4.5e11).epsilon(0.03));
    CHECK(fit.worst_residual > 0);
    CHECK(fit.worst_residual < 0.07);
    CHECK(fit.typical_residual <= fit.worst_residual);
  }
}

TEST_CASE("fit: a latency is never negative") {
  const std::vector<Point> points{{1e6, 1e-6}, {1e7, 1.3e-5}, {1e8, 1.5e-4}};
  const LatencyRate fit = fit_latency_rate(points);
  CHECK(fit.latency == 0);
  CHECK(fit.rate > 0);
  // With the latency fixed at 0 the relative residuals are balanced.
  double gradient = 0;
  for (const Point& p : points) {
    const double x = p.work / fit.rate / p.seconds;
    gradient += (x - 1) * x;
  }
  CHECK(gradient == doctest::Approx(0).epsilon(1e-9));
}

TEST_CASE("fit: what says nothing is refused") {
  const auto refused = [](std::vector<Point> points) {
    CHECK_THROWS_AS(fit_latency_rate(points), std::invalid_argument);
  };
  refused({});
  refused({{1, 1}});
  refused({{1, 1}, {1, 2}});
  refused({{1, 1}, {2, 0}});
  refused({{1, 1}, {-2, 1}});
  refused({{1, 1}, {2, HUGE_VAL}});
  refused({{1, 4}, {2, 4}, {3, 4}});  // time does not grow
}

TEST_CASE("fit: efficiency is the median of each shape class") {
  const double peak = 1e15;
  const auto timed = [&](double m, double n, double k, double share) {
    return ProductTime{m, n, k, 1, 2 * m * n * k / (share * peak)};
  };
  const std::vector<ProductTime> products{
      timed(16, 4096, 4096, 0.02),  timed(4096, 63, 4096, 0.04),  timed(256, 4096, 4096, 0.3),
      timed(4096, 4096, 4096, 0.7), timed(8192, 8192, 8192, 0.8), timed(2048, 9000, 2048, 0.9)};
  const auto rows = fit_efficiency(products, peak);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].shape == ShapeClass::tiny);
  CHECK(rows[0].median == doctest::Approx(0.03));
  CHECK(rows[1].shape == ShapeClass::narrow);
  CHECK(rows[1].shapes == 1);
  CHECK(rows[2].shape == ShapeClass::large);
  CHECK(rows[2].median == doctest::Approx(0.8));
  CHECK(rows[2].low == doctest::Approx(0.7));
  CHECK(rows[2].high == doctest::Approx(0.9));
  CHECK_THROWS_AS(fit_efficiency(products, 0), std::invalid_argument);
}
