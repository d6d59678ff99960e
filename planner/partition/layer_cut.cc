#include "partition/layer_cut.h"

#include <algorithm>
#include <limits>

namespace shardfit::partition {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Least largest value over stages `s` .. and layers `i` .., and where the stage ends.
struct Cell {
  double value = infinite;
  int end = -1;
};

class CutTable {
 public:
  CutTable(int layers, int stages) : layers_(layers), stages_(stages) {
    cells_.resize(place(stages, layers) + 1);
  }

  /// Fills the table for a value of (stage, from, to); the least largest one of all cuts.
  template <class ValueOf>
  double fill(const ValueOf& value_of) {
    std::fill(cells_.begin(), cells_.end(), Cell{});
    at(stages_, layers_).value = -infinite;
    for (int s = stages_ - 1; s >= 0; --s) {
      // Each stage before and after this one has a layer.
      for (int from = s; from <= layers_ - (stages_ - s); ++from) {
        Cell& cell = at(s, from);
        for (int to = layers_ - (stages_ - s - 1); to > from; --to) {
          const double later = at(s + 1, to).value;
          if (later >= cell.value) continue;
          const double value = std::max(later, value_of(s, from, to));
          if (value < cell.value) cell = {value, to};
        }
      }
    }
    return at(0, 0).value;
  }

  std::vector<int> layers() {
    std::vector<int> out;
    for (int s = 0, from = 0; s < stages_; ++s) {
      const int to = at(s, from).end;
      out.push_back(to - from);
      from = to;
    }
    return out;
  }

 private:
  Cell& at(int stage, int from) { return cells_[place(stage, from)]; }
  std::size_t place(int stage, int from) const {
    return static_cast<std::size_t>(stage) * (static_cast<std::size_t>(layers_) + 1) +
           static_cast<std::size_t>(from);
  }
  int layers_, stages_;
  std::vector<Cell> cells_;
};

}  // namespace

std::optional<LayerCut> cut_layers(int layers, int stages, const StageLoadOf& load) {
  if (stages < 1 || layers < stages) return {};
  CutTable table(layers, stages);
  LayerCut out;
  out.most_first =
      table.fill([&](int stage, int from, int to) { return load(stage, from, to).first; });
  if (!(out.most_first < infinite)) return {};
  out.most_second = table.fill([&](int stage, int from, int to) {
    const StageLoad one = load(stage, from, to);
    return one.first > out.most_first ? infinite : one.second;
  });
  if (!(out.most_second < infinite)) return {};
  out.layers = table.layers();
  return out;
}

}  // namespace shardfit::partition
