// Of a search: layers moved between the stages of a pipeline.

#include <algorithm>
#include <numeric>

#include "search/joint_space.h"

namespace shardfit::search {
namespace {

/// Cuts that are run for one configuration until one fits, beside the first.
constexpr int most_cuts = 8;

}  // namespace

/// The exact best cuts stand beside each pipeline whose layers nobody has dealt out.
void JointSpace::add_cuts(std::size_t uncut) {
  const Way& own = way(points_[uncut]);
  const auto& megatron = own.job.job.megatron;
  if (!megatron || megatron->pipeline == 1 || megatron->virtual_stages > 1) return;
  if (spec_.job.stage_layers || own.lowering->pipeline_layers() <= megatron->pipeline) return;
  for (const CutAim aim : {CutAim::shortest, CutAim::smallest}) {
    if (aim == CutAim::shortest && !timed()) continue;
    Point point = points_[uncut];
    point.cut = aim;
    point.uncut = uncut;
    points_.push_back(std::move(point));
  }
}

bool JointSpace::bound_cut(Point& point) {
  if (!point.cut || point.cut_known) return false;
  point.cut_known = true;
  Point& uncut = points_[point.uncut];
  run(uncut, false);
  point.blocks = uncut.blocks;
  point.configuration.recompute = uncut.configuration.recompute;
  if (uncut.timing) {
    const std::vector<double>& busy = uncut.timing->busy_seconds;
    const double all = std::accumulate(busy.begin(), busy.end(), 0.0);
    point.least_seconds = std::max(point.least_seconds, all / static_cast<double>(busy.size()));
  }
  const auto [at, fresh] = loads_.try_emplace(point.uncut);
  const StageLoads& loads = at->second;
  if (fresh) {
    Option option =
        lower(uncut, job_of(uncut, uncut.blocks), passes_of(uncut).some, Find::verdict, false);
    option.timing = uncut.timing;
    at->second = stage_loads(option);
  }
  const auto cut = cut_below(point, static_cast<double>(budget(point)));
  set_cut(point, cut ? cut : best_cut(loads, CutAim::smallest, 0));
  return true;
}

std::optional<StageCut> JointSpace::cut_below(const Point& point, double bytes) const {
  return best_cut(loads_.at(point.uncut), *point.cut, bytes);
}

void JointSpace::set_cut(Point& point, const std::optional<StageCut>& cut) const {
  point.configuration.stage_layers.clear();
  if (cut && cut->layers != loads_.at(point.uncut).layers) {
    point.configuration.stage_layers = cut->layers;
  }
  point.cut_bytes = cut ? cut->most_bytes : 0;
}

/// The loads say little of pieces of memory that lie about: where the best cut does not fit, those
/// that hold less by the loads are run, the shortest first.
void JointSpace::run_cut(Point& point, bool needed) {
  bound_cut(point);
  for (int tried = 0;; ++tried) {
    if (point.configuration.stage_layers.empty()) {  // no other than it was
      Point& uncut = points_[point.uncut];
      run(uncut, needed);
      point.found = uncut.found;
      point.timing = uncut.timing;
      point.measured = uncut.measured;
    } else {
      run_as(point, point.blocks, needed, true);
    }
    if (point.found->verdict == Verdict::fits || *point.cut == CutAim::smallest) return;
    const auto next = cut_below(point, point.cut_bytes);
    if (!next || tried == most_cuts) return;
    set_cut(point, next);
  }
}

}  // namespace shardfit::search
