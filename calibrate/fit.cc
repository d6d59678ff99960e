// The only file with Eigen.
#include "calibrate/fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "calibrate/stopping_rule.h"

namespace shardfit::calibrate {
namespace {

/// Solves min |diag(1 / seconds) (A x - seconds)|.
Eigen::VectorXd solve(const Eigen::MatrixXd& columns, const Eigen::VectorXd& seconds) {
  const Eigen::VectorXd weights = seconds.cwiseInverse();
  return (weights.asDiagonal() * columns)
      .colPivHouseholderQr()
      .solve(Eigen::VectorXd::Ones(seconds.size()));
}

void check(std::span<const Point> points) {
  if (points.size() < 2) throw std::invalid_argument("a fit needs two points");
  bool differ = false;
  for (const Point& point : points) {
    if (!(point.work > 0) || !(point.seconds > 0) || !std::isfinite(point.work) ||
        !std::isfinite(point.seconds)) {
      throw std::invalid_argument("a fit needs positive work and time");
    }
    differ = differ || point.work != points.front().work;
  }
  if (!differ) throw std::invalid_argument("a fit needs two sizes");
}

}  // namespace

LatencyRate fit_latency_rate(std::span<const Point> points) {
  check(points);
  const auto rows = static_cast<Eigen::Index>(points.size());
  // Work is scaled to its largest value, so that both columns are of the same size.
  double scale = 0;
  for (const Point& point : points) scale = std::max(scale, point.work);
  Eigen::MatrixXd columns(rows, 2);
  Eigen::VectorXd seconds(rows);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const Point& point = points[static_cast<std::size_t>(i)];
    columns(i, 0) = 1;
    columns(i, 1) = point.work / scale;
    seconds(i) = point.seconds;
  }
  Eigen::VectorXd found = solve(columns, seconds);
  if (found(0) < 0) {
    found(0) = 0;
    found(1) = solve(columns.rightCols(1), seconds)(0);
  }
  // Below a hundredth of the time the slope is noise.
  if (!(found(1) > 0.01 * seconds.maxCoeff())) {
    throw std::invalid_argument("time does not grow with work");
  }
  LatencyRate fit;
  fit.latency = found(0);
  fit.rate = scale / found(1);
  fit.points = static_cast<int>(points.size());
  const Eigen::VectorXd residual = (columns * found - seconds).cwiseQuotient(seconds);
  fit.worst_residual = residual.cwiseAbs().maxCoeff();
  fit.typical_residual = std::sqrt(residual.squaredNorm() / static_cast<double>(rows));
  return fit;
}

const char* shape_class_name(ShapeClass shape) {
  constexpr const char* names[] = {"tiny", "narrow", "medium", "large"};
  return names[static_cast<int>(shape)];
}

ShapeClass shape_class(double m, double n, double k) {
  const double least = std::min({m, n, k});
  if (least < 64) return ShapeClass::tiny;
  if (least < 512) return ShapeClass::narrow;
  return least < 2048 ? ShapeClass::medium : ShapeClass::large;
}

std::vector<Efficiency> fit_efficiency(std::span<const ProductTime> products, double peak) {
  if (!(peak > 0)) throw std::invalid_argument("efficiency needs a peak rate");
  std::vector<Efficiency> rows;
  for (const ShapeClass shape :
       {ShapeClass::tiny, ShapeClass::narrow, ShapeClass::medium, ShapeClass::large}) {
    std::vector<double> shares;
    for (const ProductTime& p : products) {
      if (shape_class(p.m, p.n, p.k) != shape) continue;
      shares.push_back(2 * p.m * p.n * p.k * p.groups / p.seconds / peak);
    }
    if (shares.empty()) continue;
    std::sort(shares.begin(), shares.end());
    rows.push_back({shape, quantile(shares, 0.5), shares.front(), shares.back(),
                    static_cast<int>(shares.size())});
  }
  return rows;
}

}  // namespace shardfit::calibrate
