#pragma once
// Times of several sizes as a latency and a rate, by least squares.

#include <span>
#include <string>
#include <vector>

namespace shardfit::calibrate {

/// Work (bytes or flops) and the seconds it took.
struct Point {
  double work = 0;
  double seconds = 0;
};

/// seconds = latency + work / rate.
struct LatencyRate {
  double latency = 0;           // seconds, not negative
  double rate = 0;              // work a second
  double worst_residual = 0;    // largest |fitted - measured| / measured
  double typical_residual = 0;  // root of the mean square of the same
  int points = 0;
};

/// Least squares on relative errors (each point weighs 1 / seconds^2), since sizes span decades and
/// so do times. A latency below zero is set to zero and the rate fitted alone. Needs two points of
/// different work; throws std::invalid_argument for fewer, for values that are not positive, and
/// where time does not grow with work: the work of the largest point explains less than 1 % of its
/// time.
LatencyRate fit_latency_rate(std::span<const Point> points);

/// A matrix product's class, by its smallest dimension: the roofline bends there.
enum class ShapeClass { tiny, narrow, medium, large };
/// "tiny" (below 64), "narrow" (below 512), "medium" (below 2048), "large".
const char* shape_class_name(ShapeClass shape);
ShapeClass shape_class(double m, double n, double k);

/// What products of one class and dtype reached of a rate: the median over shapes, lowest, highest.
struct Efficiency {
  ShapeClass shape = ShapeClass::large;
  double median = 0, low = 0, high = 0;
  int shapes = 0;
};
struct ProductTime {
  double m = 0, n = 0, k = 0, groups = 1;
  double seconds = 0;
};
/// One row a class that has a product, from tiny to large; shares of `peak` (flops a second, > 0).
std::vector<Efficiency> fit_efficiency(std::span<const ProductTime> products, double peak);

}  // namespace shardfit::calibrate
